"""Records in a directory shared with other users: files they created there first are not written, opened or removed."""

import logging
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskd.config.reading import Source
from taskd.config.rundir import MAX_RUN_DIR_BYTES
from taskd.config.rundir import run_dir as chosen
from taskd.errors import FolderError
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.folders.ownfolder import OwnFolder
from taskd.runtime.manager.journal import Journal
from taskd.wire.kinds import LocalRank

NEIGHBOUR = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder can be made by root alone")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Yield a directory like /tmp, where a default run directory would lie."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ts-") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@pytest.fixture
def precious(shared: Path) -> Path:
    """Return a file of this user at another place."""
    path = shared / "precious"
    path.write_text("mine\n")
    return path


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch, shared: Path) -> Callable[[], Journal]:
    """Return a function that opens a job's journal at the default place."""
    monkeypatch.delenv("TASKD_RUN_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(shared))
    return lambda: Journal(chosen(Source(os.environ)), "job")


def write(journal: Journal) -> None:
    journal.write("manager started")
    journal.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_closed_to_others_from_top_to_bottom(keep: Callable[[], Journal], shared: Path) -> None:
    top = shared / f"taskd-{os.getuid()}"
    top.mkdir(mode=0o755)  # as an older taskd created it
    top.chmod(0o755)
    write(keep())
    assert [mode(top), mode(top / "job"), mode(top / "job" / "journal.jsonl")] == [0o700, 0o700, 0o600]
    assert "manager started" in (top / "job" / "journal.jsonl").read_text()


@as_root
@pytest.mark.parametrize("below", ["", "job"])
def test_what_a_neighbour_made_first_is_not_used(
    keep: Callable[[], Journal], shared: Path, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shared / f"taskd-{os.getuid()}" / below
    folder.mkdir(mode=0o777, parents=True)
    os.chown(folder, NEIGHBOUR, NEIGHBOUR)
    write(keep())
    assert list(folder.iterdir()) == []
    assert f"found a folder of user {NEIGHBOUR}, expected one of user {os.geteuid()} alone" in caplog.text
    assert "set TASKD_RUN_DIR" in caplog.text


@pytest.mark.parametrize("name", ["", "job", "job/journal.jsonl", "job/lock"])
def test_no_link_leads_anywhere(
    keep: Callable[[], Journal], shared: Path, precious: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    link = shared / f"taskd-{os.getuid()}" / name
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elsewhere = shared / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(precious if link.suffix or link.name == "lock" else elsewhere)
    write(keep())
    assert precious.read_text() == "mine\n"
    assert list(elsewhere.iterdir()) == []
    assert link.is_symlink()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("name", ["journal.jsonl", "lock"])
def test_nobody_waits_for_a_pipe(
    keep: Callable[[], Journal], shared: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shared / f"taskd-{os.getuid()}" / "job"
    folder.mkdir(mode=0o700, parents=True)
    os.mkfifo(folder / name)
    write(keep())
    assert "expected one of user" in caplog.text


def test_kept_boxes_go_through_no_link(keep: Callable[[], Journal], shared: Path, precious: Path) -> None:
    run_dir = shared / f"taskd-{os.getuid()}"
    journal, files = keep(), RankFiles(run_dir, "job")
    files.records = journal.mark
    (run_dir / "job" / "boxes").mkdir(mode=0o700)
    (run_dir / "job" / "boxes" / "rank-0.box").symlink_to(precious)
    files.prepare(LocalRank(0), 0, 0, Shape(), joins=False)
    files.discard(LocalRank(0), 0, keep_as="rank-0.box")
    files.close()
    journal.close()
    assert precious.read_text() == "mine\n"
    assert (run_dir / "job" / "boxes" / "rank-0.box").stat().st_size > 1000, "the link was replaced, not followed"


def test_what_is_whole_replaces_what_was_there(shared: Path, precious: Path) -> None:
    with closing(OwnFolder(shared / "own")) as folder:
        (shared / "own" / f".one.{os.getpid()}-{threading.get_ident()}").symlink_to(precious)
        folder.write("one", b"first")
        folder.write("one", b"second")
        assert sorted(folder.names()) == ["one"]
        assert (shared / "own" / "one").read_bytes() == b"second"
        (shared / "own" / "two").symlink_to(precious)
        with pytest.raises(FolderError, match="a link or a pipe"):
            folder.open("two", os.O_WRONLY)
    assert precious.read_text() == "mine\n"


def test_the_users_own_directory_is_preferred_where_it_is_there(shared: Path) -> None:
    own = shared / "run"
    env = {"XDG_RUNTIME_DIR": str(own), "TMPDIR": str(shared)}
    default = shared / f"taskd-{os.getuid()}"
    assert chosen(Source(env)) == default, "it is not there"
    own.mkdir(mode=0o755)
    assert chosen(Source(env)) == default, "others can look into it"
    own.chmod(0o700)
    assert chosen(Source(env)) == own / "taskd"
    assert chosen(Source({**env, "TASKD_RUN_DIR": "/elsewhere"})) == Path("/elsewhere")


def test_a_directory_for_temporary_files_that_is_too_deep_for_sockets_is_not_used(shared: Path) -> None:
    """All processes of a job then find the same directory, whatever their own TMPDIR is."""
    name = f"taskd-{os.getuid()}"
    longest = MAX_RUN_DIR_BYTES - len(name) - 1
    for length, parent in ((longest, None), (longest + 1, "/tmp"), (90, "/tmp")):
        deep = "/" + "x" * (length - 1)
        assert chosen(Source({"TMPDIR": deep})) == Path(parent or deep) / name
    assert chosen(Source({"TMPDIR": "/\u00e4" + "x" * (longest - 2)})) == Path("/tmp") / name, "bytes count"
    assert chosen(Source({"TMPDIR": "/" + "x" * 90, "XDG_RUNTIME_DIR": "/" + "y" * 90})) == Path("/tmp") / name
