"""A dying process's records in its box. The process dies as it would without a box."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from taskd.runtime.box.blackbox import BoxSender, Life
from tests.shim.armed import CORE, PROGRAMS, armed, plain, until

PROGRAM = PROGRAMS / "crashes.py"
CAUSES = {
    "segv": signal.SIGSEGV,
    "jump": signal.SIGSEGV,
    "overflow": signal.SIGSEGV,
    "spoilt": signal.SIGSEGV,
    "bus": signal.SIGBUS,
    "fpe": signal.SIGFPE,
    "ill": signal.SIGILL,
    "abort": signal.SIGABRT,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("crash") / "libcrash.so"
    flags = ["-O1", "-w", "-fno-omit-frame-pointer", "-fno-stack-protector", "-pthread", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", target, PROGRAMS / "crash.c"], check=True)
    return target


def script(body, box, library):
    """Return the command. Without a box, it behaves as in stock Python."""
    return ["python", PROGRAM, library, box.path if box is not None else "-", body]


def start(body, box, library, launcher, how):
    return launcher.start(script(body, box, library), env=armed(box.path) if how == "gate" else plain())


@pytest.mark.parametrize("how", ["gate", "core"])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_fatal_signal_is_recorded_and_kills_as_ever(cause, how, box, library, launcher):
    body = f"crash.crash(b{cause!r})"
    expected = launcher.run(script(body, None, library), env=plain())
    worker = start(body, box, library, launcher, how)
    assert worker.wait(20) == -CAUSES[cause] == expected[0]
    assert launcher.output(worker) == expected[1]
    said = box.postmortem()
    fault = said.fault
    assert fault is not None
    assert (fault.name, fault.tid, fault.handled) == (CAUSES[cause].name, worker.pid, False)
    assert fault.thread.startswith("python")
    assert (said.exit_status, said.request, said.last_words) == (None, None, None)
    assert 0 < fault.at_ns <= time.monotonic_ns()
    if cause == "segv":
        assert fault.address == 0x40
    if cause == "jump":
        assert (fault.pc, fault.address) == (0, 0)
    elif cause == "abort":
        assert (fault.sender, fault.address) == (BoxSender(worker.pid, os.getuid()), None)
        assert fault.frames[0].module == "libc.so.6"
    elif cause != "spoilt":
        assert fault.sender is None
        assert fault.frames[0].address == fault.pc
        assert fault.frames[0].module == library.name
        names = subprocess.check_output(["addr2line", "-fe", library, hex(fault.frames[0].offset)], text=True)
        assert names.split()[0] in ("crash", "overflow", "read_past_the_end_of_a_file"), names
    if cause not in ("spoilt", "jump"):
        assert library.name in [frame.module for frame in fault.frames]
    assert re.fullmatch(r"\S+\+0x[0-9a-f]+|0x[0-9a-f]+", str(fault.frames[0]))


@pytest.mark.parametrize("how", ["gate", "core"])
def test_the_thread_is_named(how, box, library, launcher):
    worker = start("crash.crash_thread(b'segv')", box, library, launcher, how)
    assert worker.wait(20) == -signal.SIGSEGV
    fault = box.postmortem().fault
    assert fault is not None
    assert fault.thread == "guilty"
    assert fault.tid != worker.pid


@pytest.mark.parametrize("how", ["gate", "core"])
@pytest.mark.parametrize("cause", ["segv", "abort", "overflow", "fpe"])
def test_faulthandler_has_its_say(cause, how, box, library, launcher):
    body = f"faulthandler.enable()\ncrash.crash(b{cause!r})"
    worker = start(body, box, library, launcher, how)
    assert worker.wait(20) == -CAUSES[cause]
    assert "Fatal Python error" in launcher.output(worker)
    assert "most recent call first" in launcher.output(worker)
    fault = box.postmortem().fault
    assert fault is not None
    assert fault.name == CAUSES[cause].name
    if how == "gate":  # it came here first; else faulthandler sends it again
        assert not fault.handled
        assert library.name in [frame.module for frame in fault.frames]


@pytest.mark.parametrize("how", ["gate", "core"])
def test_a_fault_that_the_program_survives_gives_way_to_the_one_that_kills(how, box, library, launcher, tmp_path):
    go = tmp_path / "go"
    body = f"crash.survive(); r.step(2); sys.stdout.flush(); await_go({str(go)!r}); crash.crash(b'segv')"
    worker = start(body, box, library, launcher, how)
    if how == "gate":
        until(lambda: box.read().step == 2, "it has survived")
        fault = box.postmortem().fault
        assert fault is not None
        assert (fault.name, fault.handled) == ("SIGILL", True)
    go.touch()
    assert worker.wait(20) == -signal.SIGSEGV
    fault = box.postmortem().fault
    assert fault is not None
    assert (fault.name, fault.handled, fault.address) == ("SIGSEGV", False, 0x40)


HANDLED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"


@pytest.mark.parametrize("how", ["gate", "core"])
@pytest.mark.parametrize("handler", ["", HANDLED], ids=["default", "handled"])
def test_who_sent_the_sigterm_is_known(handler, how, box, library, launcher):
    if handler and how == "core":
        pytest.skip("without the gate a later handler takes the signal for itself")
    worker = start(handler + "r.step(2)\ntime.sleep(60)", box, library, launcher, how)
    until(lambda: box.read().step == 2, "it waits")
    killer = subprocess.Popen(["kill", str(worker.pid)])
    assert worker.wait(20) == (7 if handler else -signal.SIGTERM)
    killer.wait()
    said = box.postmortem()
    assert said.request is not None
    assert said.request.sender == BoxSender(killer.pid, os.getuid())
    assert said.request.count == 1
    assert said.fault is None
    assert said.exit_status == (7 if handler else None)


def test_a_sent_fault_signal_names_its_sender(box, library, launcher):
    worker = start("r.step(2)\ntime.sleep(60)", box, library, launcher, "gate")
    until(lambda: box.read().step == 2, "it waits")
    worker.send_signal(signal.SIGSEGV)
    assert worker.wait(20) == -signal.SIGSEGV
    fault = box.postmortem().fault
    assert fault is not None
    assert (fault.sender, fault.address) == (BoxSender(os.getpid(), os.getuid()), None)


def test_the_program_sees_its_own_handlers(box, library, launcher):
    expected = launcher.run(script("show_handlers()", None, library), env=plain())
    shown = launcher.run(script("show_handlers()", box, library), env=armed(box.path))
    changing = re.compile("0x[0-9a-f]+|line [0-9]+")
    assert (shown[0], changing.sub("", shown[1])) == (0, changing.sub("", expected[1]))


@pytest.mark.parametrize("how", ["gate", "core"])
def test_a_childs_death_is_not_the_workers(how, box, library, launcher):
    worker = start("have_children_that_die()", box, library, launcher, how)
    assert worker.wait(20) == 0, launcher.output(worker)
    said = box.postmortem()
    assert (said.exit_status, said.fault, said.request, said.last_words) == (0, None, None, None)


def test_a_standby_has_the_chain_of_its_template(box, library, launcher):
    warm = armed(box.path) | {"TASKD_BLACKBOX": None}
    assert launcher.run(["python", PROGRAMS / "standby.py", library, box.path], env=warm) == (signal.SIGSEGV, "")
    said = box.postmortem()
    assert said.request is not None
    assert said.fault is not None
    assert said.fault.name == "SIGSEGV"


def test_the_newest_exception_is_kept(box, library, launcher):
    worker = start("raise_twice()", box, library, launcher, "core")
    assert worker.wait(20) == 1
    said = box.postmortem()
    line = next(at for at, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith("# here"))
    words = said.last_words
    assert words is not None
    assert (words.kind, words.where, words.message) == ("KeyError", f"{PROGRAM}:{line} in inner", "'no\\nsuch key'")
    assert said.exit_status == 1
    assert words.at_ns < said.exit_ns


def test_words_are_bounded_and_never_raise(box, library, launcher, tmp_path):
    go = tmp_path / "go"
    worker = start(f"say_odd_words({str(go)!r})", box, library, launcher, "core")
    until(lambda: box.read().step == 2, "the odd one")
    words = box.postmortem().last_words
    assert words is not None
    assert words.kind == "Odd"
    go.touch()
    until(lambda: box.read().step == 3, "the long one")
    words = box.postmortem().last_words
    assert words is not None
    assert (words.kind, words.where, set(words.message)) == ("ValueError", "", {"\N{EURO SIGN}"})
    assert 1300 < len(words.message) < 1366
    worker.kill()


@pytest.mark.parametrize("seed", range(3))
def test_random_crashes_in_busy_threads_leave_whole_records(seed, make_box, launcher, tmp_path):
    program = tmp_path / "busy"
    command = ["gcc", "-O1", "-w", "-pthread", "-rdynamic", "-o", program, PROGRAMS / "busy.c", "-ldl"]
    assert launcher.run(command) == (0, "")
    for number in range(10):
        box = make_box()
        worker = launcher.start([program, CORE, box.path, str(seed * 100 + number)])
        assert worker.wait(20) in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE)
        fault = box.postmortem().fault
        assert fault is not None
        assert fault.signum == -worker.returncode
        assert fault.frames


def test_a_box_of_a_process_that_lives_says_nothing(box, launcher):
    launcher.start(["python", "-c", "import time; time.sleep(60)"], env=armed(box.path))
    until(lambda: box.read().life is Life.HELD, "it lives")
    said = box.postmortem()
    assert (said.exit_status, said.fault, said.request, said.last_words) == (None, None, None, None)
