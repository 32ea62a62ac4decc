"""The agent's directory in shared memory, and the journal."""

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.manager.journal import Journal
from taskd.runtime.records.timeline import find_jobs, read_job
from taskd.wire.kinds import LocalRank

L0, L3 = LocalRank(0), LocalRank(3)


@pytest.fixture
def files(run_dir: Path) -> Iterator[RankFiles]:
    made = RankFiles(run_dir, "job")
    yield made
    made.close()


def test_only_this_user_may_look(files: RankFiles) -> None:
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    assert str(os.getpid()) in files.directory.name
    files.close()
    assert not files.directory.exists()


def test_a_box_per_process_and_a_position_per_rank(files: RankFiles) -> None:
    first = files.prepare(L3, 0, 0, Shape(), joins=False)
    assert first.blackbox is not None
    assert first.position is not None
    put(first.position, b"where it was")
    second = files.prepare(L3, 1, 1, Shape(), joins=True)
    assert (second.position, second.copies) == (first.position, first.copies)
    assert first.position.read_bytes() == b"where it was"
    assert second.blackbox != first.blackbox
    assert files.box(L3, 0) is not files.box(L3, 1)
    files.discard(L3, 0)
    files.discard(L3, 0)
    assert (files.box(L3, 0), first.blackbox.exists()) == (None, False)
    third = files.prepare(L3, 2, 2, Shape(), joins=False)
    assert third.position not in (None, first.position)
    assert third.position.stat().st_size == 0, "a fresh world begins with an empty one"
    files.forget(L3)
    assert not third.position.exists()


def test_a_swept_directory_is_made_anew(files: RankFiles, caplog: pytest.LogCaptureFixture) -> None:
    """A clean-up of /dev/shm may sweep it while the job runs. The ranks' positions do not lie there."""
    first = files.prepare(L3, 0, 0, Shape(), joins=False)
    assert first.position is not None
    put(first.position, b"where it was")
    swept = files.directory
    shutil.rmtree(swept)
    second = files.prepare(L3, 1, 1, Shape(), joins=True)
    assert second.position is not None
    assert second.position.read_bytes() == b"where it was"
    assert second.blackbox is not None
    assert (second.blackbox.exists(), second.blackbox.parent, swept.exists()) == (True, files.directory, False)
    files.prepare(L0, 0, 0, Shape(), joins=True)
    (told,) = caplog.messages
    assert f"{swept}, the directory of this node's black boxes, was removed by somebody else" in told
    files.discard(L3, 0)
    files.close()
    assert not files.directory.exists()


def test_a_directory_that_another_has_made_in_the_swept_ones_place_is_not_used(files: RankFiles) -> None:
    swept = files.directory
    swept.rmdir()
    swept.mkdir()
    try:
        box = files.prepare(L3, 0, 0, Shape(), joins=False).blackbox
        assert box is not None
        assert box.parent != swept
    finally:
        swept.rmdir()


def put(path: Path, content: bytes) -> None:
    """Write to the agent's memory."""
    with path.open("r+b") as memory:
        memory.write(content)


def test_what_dead_agents_left_is_swept(run_dir: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    shared = Path("/dev/shm")
    left = shared / f"taskd-{dead.pid}-left"
    of_a_first_process = shared / f"taskd-1-left-{dead.pid}"
    living = shared / f"taskd-{dead.pid}-lives"
    strange = shared / "taskd-strange-name"
    for directory in (left, of_a_first_process, living, strange):
        directory.mkdir()
        (directory / "file").touch()
    lock = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        RankFiles(run_dir, "job").close()
        found = [path.exists() for path in (left, of_a_first_process, living, strange)]
        assert found == [False, False, True, True]
    finally:
        os.close(lock)
        for directory in (living, strange):
            (directory / "file").unlink()
            directory.rmdir()


def test_the_directory_of_an_agent_that_lives_in_another_container_stays() -> None:
    """A pid without a process here may belong to a process in a container that shares the memory."""
    unseen = subprocess.Popen([sys.executable, "-c", ""])
    unseen.wait()
    directory = Path("/dev/shm") / f"taskd-{unseen.pid}-elsewhere"
    directory.mkdir()
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        RankFiles(directory / "run", "job").close()
        assert directory.exists()
    finally:
        os.close(lock)
        directory.rmdir()


def die(files: RankFiles) -> None:
    """Discard the box of rank 0's process after its death, and keep the copy."""
    files.prepare(L0, 0, 0, Shape(), joins=False)
    files.discard(L0, 0, keep_as="rank-0-incarnation-0.box")


def kept(run_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(run_dir).parent.parent) for path in run_dir.glob("*/boxes/*.box"))


def test_boxes_are_kept_where_the_manager_has_its_records(run_dir: Path) -> None:
    """Two jobs have one name, and each has its own manager. The agents of the second job die first."""
    journals = [Journal(run_dir, "job"), Journal(run_dir, "job")]
    agents = [RankFiles(run_dir, "job"), RankFiles(run_dir, "job")]
    for journal, files in reversed(list(zip(journals, agents, strict=True))):
        files.records = journal.mark
        die(files)
        assert (journal.folder / "boxes" / "rank-0-incarnation-0.box").exists()
    assert kept(run_dir) == ["job", "job.2"]
    for journal, files in zip(journals, agents, strict=True):
        journal.close()
        files.close()


def test_agents_that_do_not_see_their_managers_folder_share_none(run_dir: Path) -> None:
    """Their managers are on other hosts or never answered; a manager of that name runs here, too."""
    journal = Journal(run_dir, "job")
    agents = [RankFiles(run_dir, "job"), RankFiles(run_dir, "job")]
    agents[1].records = "0123456789abcdef"
    for files in agents:
        die(files)
        die(files)
    assert kept(run_dir) == ["job.2", "job.3"]
    assert not (journal.folder / "boxes").exists()
    for files in agents:
        files.close()
    journal.close()


def test_a_box_that_cannot_be_made_costs_the_box_alone(files: RankFiles, caplog: pytest.LogCaptureFixture) -> None:
    (files.directory / "box-0-0").touch()
    config = files.prepare(L0, 0, 0, Shape(), joins=False)
    assert config.blackbox is None
    assert "local rank 0 runs without a black box" in caplog.text


def test_nobody_waits_for_a_pipe_in_the_place_of_a_box(files: RankFiles, caplog: pytest.LogCaptureFixture) -> None:
    path = files.prepare(L0, 0, 0, Shape(), joins=False).blackbox
    assert path is not None
    path.unlink()
    os.mkfifo(path)
    files.discard(L0, 0, keep_as="rank-0-incarnation-0.box")
    assert "rank-0-incarnation-0.box cannot be kept" in caplog.text
    assert not path.exists()


def test_a_journal_in_whole_lines(run_dir: Path) -> None:
    journal = Journal(run_dir, "a job/of us")
    journal.write("one", pid=5)
    journal.write("two", reason="ä\nb")
    journal.close()
    journal.write("three")
    assert journal.path == run_dir / "a_job_of_us" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [(line["event"], line.get("pid"), line.get("reason")) for line in lines] == [
        ("one", 5, None),
        ("two", None, "ä\nb"),
    ]


def test_a_journal_that_cannot_be_written(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "file").touch()
    journal = Journal(run_dir / "file", "job")
    journal.write("one")
    journal.write("two")
    journal.close()
    assert caplog.text.count("no journal from here on") == 1
    assert "set TASKD_RUN_DIR" in caplog.text


def test_a_file_that_no_fault_can_have_does_not_count(run_dir: Path) -> None:
    (run_dir / "job" / "faults").mkdir(mode=0o700, parents=True)
    for name in ("0007.json", f"{'9' * 200}.json", "8.json.old"):
        (run_dir / "job" / "faults" / name).touch()
    journal = Journal(run_dir, "job")
    journal.close()
    assert journal.fault(1) == 8


def test_a_disk_that_is_full(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "job").mkdir()
    (run_dir / "job" / "journal.jsonl").symlink_to("/dev/full")
    journal = Journal(run_dir, "job")
    journal.write("one")
    journal.write("two")
    journal.close()
    assert caplog.text.count("no journal from here on") == 1


def test_two_living_jobs_of_one_name_share_no_folder(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the first job has ended, a third one continues in the first folder. The pages find all of them."""
    first, second = Journal(run_dir, "default"), Journal(run_dir, "default")
    first.write("manager started", job_id="default")
    second.write("manager started", job_id="default")
    assert (first.folder.name, second.folder.name) == ("default", "default.2")
    assert caplog.text.count("another job named default, ") == 1
    assert len(first.path.read_text().splitlines()) == len(second.path.read_text().splitlines()) == 1
    assert {read_job(folder).job_id for folder in find_jobs(run_dir)} == {"default"}
    assert len(find_jobs(run_dir)) == 2
    first.close()
    third = Journal(run_dir, "default")
    assert third.folder == first.folder
    third.close()
    second.close()


def test_a_job_that_was_killed_has_left_its_folder(run_dir: Path) -> None:
    script = (
        "import os; from pathlib import Path; from taskd.runtime.folders.jobfolder import JobFolder; "
        f"JobFolder(Path({str(run_dir)!r}), 'j'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    journal = Journal(run_dir, "j")
    assert journal.folder.name == "j"
    journal.close()
