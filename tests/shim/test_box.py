"""The box itself: made whole, read without trust, never torn."""

import os
import random
import re
import shutil
import stat
import struct
import subprocess
import threading
from pathlib import Path

import pytest

import taskd
from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box, BoxCommand, Life
from tests.shim.armed import CORE, PROGRAMS, REPOSITORY, plain, until

LINE = 64


def test_a_new_box_is_private_reserved_and_says_that_nothing_happened(box):
    file = box.path.stat()
    assert stat.S_IMODE(file.st_mode) == 0o600
    assert file.st_blocks * 512 >= file.st_size
    said = box.read()
    assert (said.owner_pid, said.step, said.life, said.exit_status) == (0, -1, Life.UNCLAIMED, None)
    assert box.events() == []


def test_what_is_there_is_not_overwritten(box):
    with pytest.raises(ShimError, match=r"something is there already \(EEXIST\); remove it"):
        Box.create(box.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda box: b"", r"not the size of a black box \(EINVAL\)"),
        (lambda box: box + b"\0", r"not the size of a black box \(EINVAL\)"),
        (lambda box: bytes(len(box)), r"not a black box of this version \(EPROTO\)"),
        (lambda box: box[:8] + b"\xff" + box[9:], r"not a black box of this version \(EPROTO\)"),
    ],
    ids=["empty", "too long", "zeros", "version"],
)
def test_what_is_no_box_is_refused(box, tmp_path, content, message):
    path = tmp_path / "box"
    path.write_bytes(content(box.path.read_bytes()))
    with pytest.raises(ShimError, match=message):
        Box.open(path)


def test_a_missing_file_a_link_and_a_fifo_are_refused(box, tmp_path):
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(box.path)
    os.mkfifo(fifo)
    for path, code in ((tmp_path / "none", "ENOENT"), (link, "ELOOP"), (fifo, "EINVAL")):
        with pytest.raises(ShimError, match=code):
            Box.open(path)


@pytest.mark.root
def test_a_full_file_system_is_an_error_and_leaves_nothing(run_dir):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", run_dir], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        with pytest.raises(ShimError, match=r"file system is full \(ENOSPC\); free space"):
            Box.create(run_dir / "box")
        assert list(run_dir.iterdir()) == []
    finally:
        subprocess.run(["umount", run_dir], check=True)


def test_commands_need_an_owner(box):
    with pytest.raises(ShimError, match="no process has claimed it"):
        box.command(BoxCommand.PING)


@pytest.mark.parametrize("answer", [-(2**31), -(2**31) + 1, -5000])
def test_an_answer_that_is_no_error_of_any_system(box, answer):
    with open(box.path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), struct.pack("=I", os.getpid()), 4 * LINE + 8)  # another process holds it
        os.pwrite(
            file.fileno(), struct.pack("=Ii", 1, answer), 3 * LINE + 12
        )  # the first command's number, and its result
    with pytest.raises(ShimError, match=f"it answered {answer}, expected"):
        box.command(BoxCommand.PING)


def test_closing_ends_every_wait(box):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(box.await_death())) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: box._users == 3, "all wait")
    box.close()
    for thread in threads:
        thread.join(5)
    assert answers == [False, False, False]
    assert box.closed
    with pytest.raises(ShimError, match="used after it was closed"):
        box.read()


def test_a_wait_that_runs_out_says_so(box):
    assert box.await_death(0.01) is False


@pytest.fixture
def tear(launcher, tmp_path):
    program = tmp_path / "tear"
    sources = [f"-I{REPOSITORY / 'csrc'}", PROGRAMS / "tear.c"]
    assert launcher.run(["gcc", "-O2", "-pthread", "-o", program, *sources, "-ldl"]) == (0, "")
    return program


def test_no_torn_event_is_accepted_while_others_write(tear, box, launcher):
    writer = launcher.start([tear, CORE, box.path, "write"])
    until(lambda: box.read().events > 2000, "events come")
    for _ in range(3):
        status, output = launcher.run([tear, CORE, box.path, "read", "30000"])
        assert status == 0, output
        assert int(output) > 1_000_000
    writer.kill()


def test_no_torn_event_is_accepted_after_kill_9(tear, make_box, launcher):
    rng = random.Random(5)
    for _ in range(40):
        box = make_box()
        writer = launcher.start([tear, CORE, box.path, "write"])
        enough = rng.randrange(2000, 50_000)
        until(lambda box=box, enough=enough: box.read().events > enough, "events come")
        writer.kill()
        writer.wait()
        status, output = launcher.run([tear, CORE, box.path, "read", "1"])
        assert status == 0, output
        # Four writers were killed: at most four slots are half-written, and as many tickets taken and not written.
        dropped = box.read().dropped
        assert 1024 - 8 - dropped <= int(output) <= 1024


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_never_crash_the_reader(seed, box, launcher, tmp_path):
    command = ["python", PROGRAMS / "fuzz.py", box.path, tmp_path / "scratch", str(seed), "300"]
    status, output = launcher.run(command, env=plain())
    assert status == 0
    assert re.fullmatch(r"\d+\n", output)
    assert int(output) > 100


def test_the_core_that_is_missing_is_an_error_with_a_remedy(launcher, tmp_path):
    shutil.copytree(Path(taskd.__file__).parent, tmp_path / "taskd", ignore=shutil.ignore_patterns("libs"))
    program = (
        "from taskd.runtime.box.blackbox import open_recorder, BoxPhase\n"
        "r = open_recorder(); r.step(1); r.phase(BoxPhase.TRAINING)\n"
        "print(r.attached, r.break_collectives(), r.census().sockets, r.reason)"
    )
    status, output = launcher.run(["python", "-c", program], env=plain() | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert status == 0
    assert output.startswith("False 0 0 the core of the shim cannot be loaded: ")
    assert "reinstall taskd" in output


def test_a_second_core_is_refused(box, launcher, tmp_path):
    copy = tmp_path / "libtaskd_core.so"
    shutil.copy(CORE, copy)
    status, output = launcher.run(["python", PROGRAMS / "second_core.py", copy], env=plain())
    assert status == 1
    assert "another libtaskd_core.so" in output
