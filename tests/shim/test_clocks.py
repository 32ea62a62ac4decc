"""Four clocks distinguish the activities of a process that makes no progress."""

import time

import pytest

from tests.shim.armed import PROGRAMS, armed, plain, until

SECOND_NS = 1_000_000_000

STATES = {
    "busy": ("while True: sum(range(1000))", "goes on"),
    "short naps": ("while True: time.sleep(0.01)", "goes on"),
    "native with the GIL": ("held.sleep(60)", "GIL held"),
    "native without the GIL": ("free.sleep(60)", "main thread stuck"),
    "deadlock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "main thread stuck"),
    "another thread holds the GIL": ("threading.Thread(target=held.sleep, args=(60,)).start()", "GIL held"),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "stopped"),
}


def state(box):
    """Return the state of the process, judged by the clocks alone."""
    now, clocks = time.monotonic_ns(), box.clocks()
    if now - clocks.native_ns > SECOND_NS:
        return "stopped"
    if clocks.gil_asked_ns and now - clocks.gil_asked_ns > SECOND_NS:
        return "GIL held"
    if clocks.main_asked_ns and now - clocks.main_asked_ns > SECOND_NS and now - clocks.gil_ns < SECOND_NS:
        return "main thread stuck"
    if max(now - clocks.main_ns, now - clocks.gil_ns) < SECOND_NS:
        return "goes on"
    return f"unknown: {now} {clocks}"


def start(body, box, launcher, how="core"):
    command = ["python", PROGRAMS / "clocked.py", box.path, body]
    worker = launcher.start(command, env=armed(box.path) if how == "gate" else plain())
    until(lambda: box.read().step == 1, "it is up")
    return worker


@pytest.mark.parametrize("how", ["gate", "core"])
@pytest.mark.parametrize("name", STATES)
def test_states_are_told_apart(name, how, box, launcher):
    body, expected = STATES[name]
    worker = start(body, box, launcher, how)
    until(lambda: state(box) == expected, f"{expected}, is {state(box)}")
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        assert state(box) == expected
        time.sleep(0.02)
    worker.kill()


def test_a_state_that_passes_is_forgotten(box, launcher):
    start("free.sleep(2)\nwhile True: time.sleep(0.01)", box, launcher)
    until(lambda: state(box) == "main thread stuck", "it sleeps")
    until(lambda: state(box) == "goes on", "it is awake")
    assert box.read().gil_asked_ns == 0


def test_the_newest_open_event_is_a_clock(box, launcher, tmp_path):
    go = tmp_path / "go"
    before = time.monotonic_ns()
    start(f"nest({str(go)!r})", box, launcher)
    until(lambda: box.read().phase == 2, "it has entered")
    opened = box.clocks().open_event
    assert opened is not None
    assert (opened.op, opened.left_ns) == (2, 0)
    assert before < opened.entered_ns < time.monotonic_ns()
    go.touch()
    until(lambda: box.read().phase == 3, "it has left")
    assert box.clocks().open_event is None


ENDINGS = {
    "return": ("", 0),
    "exit in a thread's time": ("threading.Thread(target=time.sleep, args=(0.3,)).start(); sys.exit(5)", 5),
    "exception": ("raise SystemExit(6)", 6),
    "fork": ("pid = os.fork()\nif pid: sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\nsys.exit(7)", 7),
    "exit with the main thread asked": ("free.usleep(500000); sys.exit(8)", 8),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_asking_does_not_outlive_the_interpreter(name, box, launcher):
    body, status = ENDINGS[name]
    worker = start(body, box, launcher)
    assert (worker.wait(20), launcher.output(worker)) == (status, "")
    assert box.read().exit_status == status


@pytest.mark.slow
def test_lives_that_end_at_any_moment_of_a_beat_end_well(make_box, launcher):
    for number in range(20):
        box = make_box()
        command = ["python", PROGRAMS / "lives.py", box.path, str(0.17 + number % 10 * 0.01)]
        assert launcher.run(command, env=plain()) == (0, "")
        assert box.read().exit_status == 0


def test_a_child_asks_nobody_until_it_has_a_box(make_box, launcher):
    first, second = make_box(), make_box()
    start(f"have_child({str(second.path)!r})", first, launcher)
    until(lambda: second.read().step == 2, "the child has a box")
    until(lambda: state(second) == "goes on", "its clocks go")
    until(lambda: state(first) == "main thread stuck", "its parent pauses")
