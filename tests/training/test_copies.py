"""Files of copies: whole or absent, two of each state, and their memory is checked in advance."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from taskd.adaptors.training.copies import room
from taskd.adaptors.training.copies.copy_file import HEAD_BYTES, CopyFile, CopyHead
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.copies.ring import Neighbours, neighbours
from taskd.runtime.system.memory import memory_of
from taskd.wire.kinds import JobRank
from taskd.wire.state import StateCopy

R0, R1, R2, R3 = map(JobRank, range(4))


def copied(folder: CopyFolder, of: JobRank, step: int, keep: int = -1, size_bytes: int = 100) -> CopyFile:
    file = folder.room(of, size_bytes, keep)
    file.bytes(size_bytes)[:] = bytes([step % 256]) * size_bytes
    file.seal(CopyHead(of, step, size_bytes, "d"))
    return file


def pieces(folder: Path) -> list[Path]:
    """Return files in place of those that an agent keeps for one rank, without any content yet."""
    folder.mkdir()
    paths = [folder / f"copy-{number}" for number in range(6)]
    for path in paths:
        path.touch(mode=0o600)
    return paths


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CopyFolder]:
    folder = CopyFolder(pieces(tmp_path / "of-3"), R3)
    yield folder
    folder.close()


def test_a_copy_that_is_begun_is_none(tmp_path: Path) -> None:
    file = CopyFile(tmp_path / "copy")
    assert file.head() is None
    file.reserve(10)
    assert file.head() is None
    file.seal(CopyHead(R1, 7, 10, "d"))
    assert file.head() == CopyHead(R1, 7, 10, "d")
    assert CopyFile(tmp_path / "copy").head() == CopyHead(R1, 7, 10, "d"), "another process sees it"
    file.reserve(10)
    assert CopyFile(tmp_path / "copy").head() is None


def test_a_copy_grows_with_the_state(tmp_path: Path) -> None:
    file = CopyFile(tmp_path / "copy")
    file.reserve(10)
    file.reserve(5 << 20)
    file.tensor((5 << 20) - 8, 8).view(torch.int64).fill_(42)
    file.seal(CopyHead(R0, 1, 5 << 20))
    again = CopyFile(tmp_path / "copy")
    assert int.from_bytes(again.bytes(5 << 20)[-8:], "little") == 42
    assert os.stat(tmp_path / "copy").st_blocks * 512 >= 5 << 20, "its memory is reserved"


@pytest.mark.parametrize("at", [0, 5, 9, 13, 20])
def test_a_damaged_head_is_none(tmp_path: Path, at: int) -> None:
    file = CopyFile(tmp_path / "copy")
    file.reserve(10)
    file.seal(CopyHead(R0, 1, 10))
    with (tmp_path / "copy").open("r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes([byte ^ 4]))
    assert file.head() is None


def test_a_head_that_promises_more_than_there_is_is_none(tmp_path: Path) -> None:
    file = CopyFile(tmp_path / "copy")
    file.reserve(10)
    file.seal(CopyHead(R0, 1, 1 << 40))
    assert file.head() is None


def test_no_room_is_an_error_and_no_signal(tmp_path: Path) -> None:
    file = CopyFile(tmp_path / "copy")
    with pytest.raises(OSError, match=f"Errno ({errno.ENOSPC}|{errno.EFBIG})"):
        file.reserve(1 << 50)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "copy").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=f"Errno {errno.ELOOP}"):
        CopyFile(tmp_path / "copy")


def test_two_of_each_state_and_the_older_is_written_over(folder: CopyFolder) -> None:
    for step in (2, 4, 6):
        copied(folder, R3, step)
    copied(folder, R1, 5)
    assert folder.whole() == (StateCopy(of=R1, step=5), StateCopy(of=R3, step=4), StateCopy(of=R3, step=6))


def test_the_copy_that_all_count_on_is_never_written_over(folder: CopyFolder) -> None:
    copied(folder, R3, 2)
    for step in (4, 6, 8):
        copied(folder, R3, step, keep=2)
    assert folder.whole() == (StateCopy(of=R3, step=2), StateCopy(of=R3, step=8))


def test_other_ranks_of_the_node_have_their_own(tmp_path: Path, folder: CopyFolder) -> None:
    copied(folder, R3, 2)
    other = CopyFolder(pieces(tmp_path / "of-33"), R3)
    copied(other, R3, 3)
    assert folder.whole() == (StateCopy(of=R3, step=2),)
    other.close()


def test_what_came_after_a_step_never_was(folder: CopyFolder) -> None:
    copied(folder, R3, 2)
    copied(folder, R3, 4)
    folder.forget_after(3)
    assert folder.whole() == (StateCopy(of=R3, step=2),)
    assert folder.find(R3, 4) is None


def test_removed_copies_give_their_memory_back(tmp_path: Path, folder: CopyFolder) -> None:
    copied(folder, R3, 2, size_bytes=5 << 20)
    kept = [*(tmp_path / "of-3").iterdir()]
    assert sum(path.stat().st_blocks for path in kept) * 512 >= 5 << 20
    folder.remove()
    assert sum(path.stat().st_blocks for path in kept) == 0
    assert folder.whole() == ()
    copied(folder, R3, 4)
    assert folder.whole() == (StateCopy(of=R3, step=4),)


def test_another_rank_to_keep_copies_of_gets_memory_that_nobody_counts_on(folder: CopyFolder) -> None:
    """Copies of the former rank stay until all ranks count on those of the new one."""
    for step in (2, 4):
        copied(folder, R1, step)
    copied(folder, R2, 6, keep=4)
    copied(folder, R2, 8, keep=4)
    assert {(copy.of, copy.step) for copy in folder.whole()} == {(R1, 2), (R1, 4), (R2, 6), (R2, 8)}
    copied(folder, R0, 9, keep=8)
    assert {(copy.of, copy.step) for copy in folder.whole()} == {(R0, 9), (R1, 4), (R2, 6), (R2, 8)}


def test_what_is_read_is_bounded(folder: CopyFolder) -> None:
    file = copied(folder, R3, 2, size_bytes=100)
    found = folder.find(R3, 2)
    assert found is file
    into = torch.empty(64, dtype=torch.uint8)
    file.receive(into)
    assert into.tolist() == [2] * 64
    with pytest.raises(ValueError, match="ends before the state does"):
        file.receive(into)


@pytest.mark.parametrize(
    ("rank", "members", "per_node", "near"),
    [
        (0, range(4), 4, Neighbours(None, None)),
        (0, range(4), 2, Neighbours(R2, R2)),
        (3, range(4), 2, Neighbours(R1, R1)),
        (1, range(6), 2, Neighbours(R3, JobRank(5))),
        (5, [0, 1, 4, 5], 2, Neighbours(R1, R1)),
    ],
)
def test_neighbours_are_on_other_nodes(rank: int, members: list[int], per_node: int, near: Neighbours) -> None:
    assert neighbours(JobRank(rank), [*map(JobRank, members)], per_node) == near


def test_a_shortage_says_what_is_needed_and_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(None)
    half = (memory.free_bytes * 3) // 4
    assert not room.shortage(tmp_path, 1 << 20, 4, asked=False)
    said = room.shortage(tmp_path, 1 << 50, 2, asked=True)
    assert said.startswith("2 copies of 1.05e+06 GiB on this node need 2.1e+06 GiB, ")
    assert "the files of the node's ranks have room for " in said or "the memory that is left is " in said
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((1, 1, *[1 << 60] * 8)))
    assert not room.shortage(tmp_path, half, 1, asked=True)
    assert "of which half is used at most" in room.shortage(tmp_path, half, 1, asked=False)


def test_a_copy_that_grows_beyond_the_memory_that_is_left_is_an_error(tmp_path: Path) -> None:
    """A full `/dev/shm` is an error too: the kernel would kill a process of the job. Whole copies stay whole."""
    folder = CopyFolder(pieces(tmp_path / "of-3"), R3)
    copied(folder, R3, 2)
    copied(folder, R1, 2)
    for of in (R3, R1):
        copied(folder, of, 4)
        with pytest.raises(
            OSError, match=r"copies on this node grow by 3.28e\+04 GiB, the memory that is left is"
        ) as no:
            folder.room(of, 1 << 45, 4)
        assert no.value.errno == errno.ENOSPC
    assert {copy.step for copy in folder.whole()} == {2, 4}
    folder.close()


def test_states_of_all_ranks_of_a_node_grow_at_once(tmp_path: Path) -> None:
    """The check before the first copy already covers all ranks."""
    folder = CopyFolder(pieces(tmp_path / "of-3"), R3, 1 << 20)
    assert folder.shortage(4 << 20, 0) == ""
    copied(folder, R3, 2, size_bytes=4 << 20)
    copied(folder, R1, 2, size_bytes=4 << 20)
    with pytest.raises(OSError, match="grow by"):
        folder.room(R1, 6 << 20, 2)
    folder.close()


def test_copies_that_nobody_asked_for_grow_into_half_of_what_is_left() -> None:
    memory = memory_of(None)
    most = (memory.free_bytes * 3) // 4
    room.expect_memory(most, asked=True)
    with pytest.raises(OSError, match="of which half is used at most"):
        room.expect_memory(most, asked=False)


def test_what_was_given_back_is_not_taken_again_to_look_at_it(tmp_path: Path) -> None:
    folder = CopyFolder(pieces(tmp_path / "of-3"), R3)
    copied(folder, R3, 2, size_bytes=5 << 20)
    folder.remove()
    assert folder.whole() == ()
    assert sum(path.stat().st_blocks for path in (tmp_path / "of-3").iterdir()) == 0


def test_the_head_has_a_page_of_its_own() -> None:
    assert HEAD_BYTES == 4096


@pytest.mark.parametrize(
    ("held", "left", "pressed"), [(1 << 30, 1 << 29, True), (1 << 30, 1 << 31, False), (1 << 20, 0, False)]
)
def test_copies_leave_as_much_as_they_take(
    monkeypatch: pytest.MonkeyPatch, held: int, left: int, *, pressed: bool
) -> None:
    monkeypatch.setattr(room, "_left_bytes", lambda: left)
    assert room.is_pressed(held) is pressed
