"""The position file under kill -9, under garbage, and under paths that it must not use."""

import os
import random
import resource
import signal
import sys
from pathlib import Path

import pytest

from taskd.adaptors.training.positions.payload import pack, unpack
from taskd.adaptors.training.positions.position_file import (
    CAPACITY_BYTES,
    SLOT_BYTES,
    SLOTS,
    PositionFile,
    PositionKind,
)
from taskd.errors import RestoreError
from taskd.runtime.folders.nameless import KeptMemory
from tests.launch import Launcher
from tests.training.job import ENVIRONMENT

RNG = [b"numbers", b"", b"more"]
HEAD = len(pack([b""]))

WRITER = Path(__file__).with_name("programs") / "position_writer.py"


def test_a_killed_writer_leaves_only_whole_entries(launcher: Launcher, tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "position"
    for _ in range(3):
        writer = launcher.start(["python", "-S", WRITER, path], env=_light())
        file = _opened(path)
        reads = 0
        while reads < chance.randint(200, 2000):  # also during its writes: every accepted entry is whole
            for step, payload in file.read().items():
                assert payload[HEAD:] == bytes([step % 251]) * (10_000 + step % 97)
            reads += 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        after = file.read()
        assert after == file.read()
        assert len(after) >= 1
        newest = max(after)
        assert newest - 1 in after or newest - 2 in after or newest == 1
        file.close()
        path.unlink()


def _light() -> dict[str, str]:
    return ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{_site()}"}


def _site() -> str:
    import msgspec

    return str(Path(msgspec.__file__).parents[1])


def _opened(path: Path) -> PositionFile:
    file = PositionFile(str(path))
    while not file.read():
        os.sched_yield()
    return file


def test_random_bytes_are_not_accepted(tmp_path: Path) -> None:
    chance = random.Random(5)
    path = tmp_path / "position"
    file = PositionFile(str(path))
    for _ in range(200):
        path.write_bytes(b"")
        with path.open("r+b") as raw:
            raw.write(chance.randbytes(SLOTS * SLOT_BYTES))
        assert file.read() == {}
    file.close()


def test_a_slot_whose_writer_was_inside_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "position"
    file = PositionFile(str(path))
    file.write(PositionKind.COMMITTED, 4, RNG, b"four")
    assert file.read() == {4: pack(RNG, b"four")}
    with path.open("r+b") as raw:
        sequence = int.from_bytes(raw.read(8), sys.byteorder)
        raw.seek(0)
        raw.write((sequence + 1).to_bytes(8, sys.byteorder))
    assert file.read() == {}
    file.close()


def test_slots(tmp_path: Path) -> None:
    file = PositionFile(str(tmp_path / "position"))
    assert file.read() == {}
    file.write(PositionKind.COMMITTED, 0, RNG)
    file.write(PositionKind.COMMITTED, 1, RNG, b"one")
    file.write(PositionKind.TENTATIVE, 2, RNG, b"maybe two")
    assert file.read() == {0: pack(RNG), 1: pack(RNG, b"one"), 2: pack(RNG, b"maybe two")}
    file.write(PositionKind.COMMITTED, 2, RNG, b"two")
    assert file.read() == {1: pack(RNG, b"one"), 2: pack(RNG, b"two")}
    room = CAPACITY_BYTES - len(pack(RNG))
    file.write(PositionKind.COMMITTED, 3, RNG, b"z" * room)
    for rng, data in ((RNG, b"z" * (room + 1)), ([b"z" * CAPACITY_BYTES], b"")):
        with pytest.raises(ValueError, match="does not fit"):
            file.write(PositionKind.COMMITTED, 5, rng, data)
    assert file.read()[3] == pack(RNG, b"z" * room)
    file.close()


def test_buffers_are_read_when_they_are_written_and_may_become_others(tmp_path: Path) -> None:
    file = PositionFile(str(tmp_path / "position"))
    memory = bytearray(b"aaaa")
    rng = (memoryview(memory), b"")
    for step, letter in enumerate(b"bcdefg"):
        memory[:] = bytes([letter]) * 4
        file.write(PositionKind.COMMITTED, step, rng)
        file.write(PositionKind.TENTATIVE, step + 1, rng)
    assert file.read() == {step: pack([letters, b""]) for step, letters in ((4, b"ffff"), (5, b"gggg"), (6, b"gggg"))}
    other = (b"longer than that", memoryview(memory))
    file.write(PositionKind.COMMITTED, 6, other)
    file.write(PositionKind.COMMITTED, 7, rng)
    assert unpack(file.read()[6]) == ([b"longer than that", b"gggg"], {})
    assert unpack(file.read()[7]) == ([b"gggg", b""], {})
    file.close()


def test_mode_and_refused_paths(tmp_path: Path) -> None:
    path = tmp_path / "position"
    PositionFile(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "short").write_bytes(b"short")
    for bad, message in (("link", "cannot be opened"), ("short", "5 bytes"), ("none/there", "cannot be opened")):
        with pytest.raises(RestoreError, match=message):
            PositionFile(str(tmp_path / bad))


def test_errors_say_what_is_to_be_done(tmp_path: Path) -> None:
    """A user can move or remove a file, but not the agent's memory, which lies under /proc."""
    (tmp_path / "short").write_bytes(b"short")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RestoreError, match="it belongs into a directory of this user"):
        PositionFile(str(tmp_path / "folder"))
    with pytest.raises(RestoreError, match=r"has 5 bytes, expected \d+: remove it$"):
        PositionFile(str(tmp_path / "short"))
    memory = KeptMemory("test", tmp_path)
    memory.path.write_bytes(b"short")
    with pytest.raises(RestoreError, match=r"has 5 bytes, expected \d+$"):
        PositionFile(str(memory.path))
    memory.close()
    with pytest.raises(RestoreError, match="which has ended, or does not let this process in"):
        PositionFile(str(memory.path))


@pytest.mark.parametrize("named", [True, False])
def test_an_error_says_what_is_full(tmp_path: Path, named: bool) -> None:
    """A limit on file sizes replaces a full file system: the kernel rejects writes with an error in both cases."""
    memory = KeptMemory("test", tmp_path, named=named)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SLOT_BYTES, hard))
    try:
        with pytest.raises(RestoreError) as told:
            PositionFile(str(memory.path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)
        memory.close()
    place = tmp_path if named else "the memory of this machine, or of its container,"
    assert str(told.value).endswith(f"; is {place} full?")
