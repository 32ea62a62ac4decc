"""`taskd blackbox` of one process: living, dead, and files that are not boxes or have false contents."""

import io
import os
import random
import re
import signal
import subprocess
import sys

import pytest

from taskd.cli.process_page import process_page
from taskd.cli.tables import page
from taskd.core.diagnosis.endings import NATIVE_FAULTS
from taskd.core.diagnosis.findings import PRESUMED, Kind
from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box
from taskd.runtime.records.snapshot import take_snapshot
from tests.cli.conftest import PROGRAMS, WAITS
from tests.shim.armed import REPOSITORY, plain, until

SEGFAULT = "ctypes.string_at(0x40)"


def test_a_living_rank_by_its_pid_and_by_its_file(start, document, blackbox) -> None:
    worker, path = start()
    for target in (worker.pid, path):
        one = document(target)["process"]
        assert (one["pid"], one["rank"], one["incarnation"], one["state"]) == (worker.pid, 3, 1, "alive")
        assert (one["step"], one["phase"], one["ages"], one["how"]) == (41, "training", "now", "")
        assert one["file"] == str(path)
        assert 0 < one["step_s"] < one["phase_s"] < one["attached_s"] < 30
        assert one["clocks"]["native_s"] < 1
        assert one["process"]["state"] == "sleeping"
        assert one["process"]["wchan"]
        assert one["at_unix_s"] is not None
    status, output = blackbox(worker.pid)
    assert status == 0
    assert output.startswith(f"rank 3 · pid {worker.pid} · incarnation 1 · alive\n")
    assert "41, committed " in output


def test_a_stopped_rank_is_seen_to_stand(start, blackbox) -> None:
    worker, path = start()
    worker.send_signal(signal.SIGSTOP)
    until(lambda: (take_snapshot(path).clocks.native_s or 0) > 1.1, "it stands")
    _, output = blackbox(worker.pid)
    assert "\nThe whole process stands for " in output
    assert re.search(r"process +stopped", output)


STUCK = {
    "held": ("ctypes.PyDLL(None).sleep(60)", "Native code holds the GIL for "),
    "lock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "The main thread has run no Python for "),
    "call": ("r._core.taskd_enter(1 | 1 << 8, 77, 8, 0, 0); " + WAITS, "In allreduce of communicator 004d for "),
}


@pytest.mark.parametrize("why", STUCK)
def test_what_keeps_a_living_rank_from_going_on_is_told_first(why, start, blackbox) -> None:
    body, words = STUCK[why]
    worker, path = start(body)
    until(lambda: (take_snapshot(path).clocks.main_s or 0) > 1.1, "its main thread does not answer")
    lines = blackbox(worker.pid)[1].splitlines()
    assert lines[1].startswith(words)
    assert any(re.match(r" +main thread +no answer for ", line) for line in lines)


ENDS = {
    "segv": (SEGFAULT, "SIGSEGV (exit code 139): an invalid memory access at address 0x40 in thread python", False),
    "abort": ("os.abort()", "SIGABRT (exit code 134): abort() was called", False),
    "exit": ("sys.exit(3)", "exit code 3", False),
    "well": ("sys.exit(0)", "exit code 0", True),
    "words": ("r.last_words(KeyError('no key')); sys.exit(1)", "exit code 1, after KeyError: 'no key'", False),
    "term": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", "SIGTERM (exit code 143)", False),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)", "without a word: SIGKILL (exit code 137;", False),
}


@pytest.mark.parametrize("end", ENDS)
def test_how_a_dead_rank_has_ended(end, start, document, blackbox) -> None:
    body, how, _ = ENDS[end]
    worker, path = start(body, gate=True)
    worker.wait(20)
    one = document(path)["process"]
    assert one["how"].startswith(how)
    assert (one["state"], one["ages"], one["process"]) == ("dead", "its end", None)
    assert 0 <= one["step_s"] < 5
    status, output = blackbox(path)
    assert status == 0
    assert how[1:] in output
    assert " · dead\n" in output
    if end == "segv":
        assert one["fatal"]["signal"] == "SIGSEGV"
        assert one["fatal"]["address"] == "0x40"
        assert len(one["fatal"]["frames"]) > 3
        assert "Native backtrace of thread python" in output
        assert one["fatal"]["frames"][0] in output
        assert "more with --all" in output
        assert one["fatal"]["frames"][-1] in blackbox(path, "--all")[1]
    if end == "term":
        assert one["terminated"]["sender"] == {"pid": worker.pid, "uid": os.getuid(), "name": ""}
    if end == "words":
        assert one["last_words"]["main"] is True


def test_a_kept_box_tells_its_time_only_if_it_is_of_this_boot(start, document, tmp_path) -> None:
    worker, path = start("sys.exit(3)")
    worker.wait(20)
    kept = tmp_path / "rank-3-incarnation-1.box"
    kept.write_bytes(path.read_bytes())
    one = document(kept)["process"]
    assert one["at_unix_s"] == pytest.approx(kept.stat().st_mtime, abs=30)
    os.utime(kept, (0, 0))  # as on a machine that was up as long, years ago
    one = document(kept)["process"]
    assert one["at_unix_s"] is None
    assert (one["how"], one["step"]) == ("exit code 3", 41)
    assert one["step_s"] >= 0


def test_a_copy_of_a_living_box_is_no_living_process(start, document, blackbox, tmp_path) -> None:
    worker, path = start()
    copy = tmp_path / "copy.box"
    copy.write_bytes(path.read_bytes())
    worker.kill()
    worker.wait(20)
    one = document(copy)["process"]
    assert (one["state"], one["ages"]) == ("unknown", "the newest time in the box")
    assert "before the newest time in the box" in blackbox(copy)[1]


def test_a_box_that_nobody_has_claimed(agent_dir, blackbox, document) -> None:
    path = agent_dir / "box-0-0"
    Box.create(path).close()
    assert document(path)["process"]["state"] == "not claimed"
    assert blackbox(path)[1].startswith("no process yet · not claimed\n")


def rows_of(page: str) -> list[list[str]]:
    """Return the rows of collectives. A headline names one too, if the process appears stuck on a busy machine."""
    _, _, table = page.partition("Newest collectives")
    return [row.split() for row in table.splitlines() if " allreduce " in row]


def test_collectives_are_told_and_open_ones_are_marked(start, blackbox, document) -> None:
    worker, path = start(f"call_collectives(); {WAITS}")
    until(lambda: take_snapshot(path).step == 42 or worker.poll() is not None, "it has called")
    one = document(path)["process"]
    newest = one["collectives"][0]
    assert newest["operation"] == "allreduce"
    assert newest["open"] is True
    assert (newest["comm"], newest["bytes"], newest["peer"]) == ("000000000000004d", 1 << 20, 2)
    assert newest["entered_s"] == pytest.approx(newest["lasted_s"])
    told = [(call["operation"], call["bytes"], call["open"]) for call in one["collectives"][1:3]]
    assert told == [("allreduce", 4000, False)] * 2
    assert (one["communicators"][0]["backend"], one["communicators"][0]["ranks"]) == ("gloo", 1)
    rows = rows_of(blackbox(path)[1])
    assert len(rows) == 12
    assert rows[0][0] == "open"
    assert len(rows_of(blackbox(path, "--all")[1])) == 21


@pytest.mark.parametrize("kind", ["missing", "empty", "short", "long", "zeros", "noise", "fifo", "text"])
def test_what_is_no_box_is_refused_in_one_line(kind, start, blackbox, tmp_path) -> None:
    path, whole = tmp_path / "file", start("sys.exit(3)")[1].read_bytes()
    contents = {
        "empty": b"",
        "short": whole[:-1],
        "long": whole + b"\0",
        "zeros": bytes(len(whole)),
        "noise": random.Random(1).randbytes(len(whole)),
        "text": b"no box\n",
    }
    if kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_bytes(contents[kind])
    status, output = blackbox(path)
    assert status == 1
    assert output.count("\n") == 1
    assert output.startswith("taskd blackbox: ")
    assert str(path) in output


def test_a_box_that_lies_is_told_or_refused(start, tmp_path) -> None:
    worker, path = start(f"r.last_words(ValueError('x')); {SEGFAULT}", gate=True)
    worker.wait(20)
    whole, chance, told = path.read_bytes(), random.Random(4), 0
    lie = tmp_path / "lie.box"
    for turn in range(150):
        spoilt = bytearray(whole)
        for _ in range(chance.choice((1, 30, 3000))):
            spoilt[chance.randrange(16 if turn % 10 else 0, len(spoilt))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        lie.write_bytes(spoilt)
        try:
            one = take_snapshot(lie)
        except ShimError:
            continue
        sink = io.StringIO()
        page(sink, process_page(one, everything=True))
        told += 1
        assert all(char.isprintable() or char == "\n" for char in sink.getvalue())
    assert told > 50


def test_a_terminal_obeys_no_box(start, blackbox) -> None:
    worker, path = start(r"""r.last_words(ValueError("\x1b]0;owned\x07 [red]\x9b31m \u202e")); sys.exit(1)""")
    worker.wait(20)
    output = blackbox(path)[1]
    assert r"\x1b]0;owned\x07 [red]\x9b31m \u202e" in output
    assert "\x1b" not in output


def test_processes_that_are_no_ranks(blackbox, start, launcher) -> None:
    status, output = blackbox(2**22 + 1)
    assert (status, "found no process 4194305" in output) == (1, True)
    child = launcher.start(["sleep", "60"])
    status, output = blackbox(child.pid)
    assert (status, f"process {child.pid} has no black box: it is no rank" in output) == (1, True)
    start()
    status, output = blackbox(os.getpid())
    assert (status, "is an agent with 1 ranks" in output) == (1, True)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_another_users_process_and_box(start) -> None:
    worker, path = start()
    for target, text in ((worker.pid, "belongs to user 0, and this is user 65534"), (path, "Permission denied")):
        command = [sys.executable, str(PROGRAMS / "stranger.py"), str(target)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert text in done.stderr
    assert worker.poll() is None


def test_whoever_has_read_enough_may_close_the_pipe(start) -> None:
    _, path = start()
    command = f"{sys.executable} -m taskd blackbox --json {path} | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_usage(blackbox) -> None:
    assert blackbox("--jsno")[0] == 2
    status, output = blackbox("--help")
    assert (status, "FILE|PID|RUN_DIR" in output) == (0, True)


def test_only_the_command_line_loads_rich(launcher) -> None:
    parts = "taskd, taskd.adaptors.torchrun.start, taskd.runtime.agent.agent, taskd.runtime.worker.worker, taskd.cli"
    code = f"import sys, {parts}; print('rich' in sys.modules)"
    assert launcher.run(["python", "-c", code], env=plain()) == (0, "False\n")
    code = "import sys, taskd.cli.blackbox; print({'markdown_it', 'pygments', 'torch'} & sys.modules.keys())"
    assert launcher.run(["python", "-c", code], env=plain()) == (0, "set()\n")


def test_the_page_explains_every_kind_field_and_signal(start, document) -> None:
    text = (REPOSITORY / "docs" / "blackbox.md").read_text()
    for kind in Kind:
        assert f"| `{kind.name}` | {kind.value}{'*' * (kind in PRESUMED)} |" in text
    for number in (*NATIVE_FAULTS, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM):
        assert f"| {128 + number} | {signal.Signals(number).name} {number} |" in text
    told = set(re.findall(r"`(\w+)`", text))
    assert document(start()[1])["process"].keys() <= told
