"""No orphan outlives its agent, and no other process is killed for it."""

import os
import signal
import subprocess
import sys

from tests.shim.armed import PROGRAMS, armed, end_of, plain, until


def start_agent(box, launcher, leads, before=""):
    environment = armed(box.path)
    gate, environment["LD_PRELOAD"] = str(environment["LD_PRELOAD"]), None
    worker = [PROGRAMS / "parents_worker.py", before]
    command = ["python", PROGRAMS / "parents_agent.py", gate, "leads" if leads else "follows", *worker]
    agent = launcher.start(command, env=environment)
    until(lambda: box.read().step > 0, "the worker is up")
    return agent, box.read().owner_pid, box.read().step, int(launcher.output(agent).split()[0])


def test_a_worker_that_leads_its_group_takes_it_along(box, launcher):
    agent, worker, child, neighbour = start_agent(box, launcher, leads=True)
    with end_of(worker) as worker_ends, end_of(child) as child_ends, end_of(neighbour) as neighbour_ends:
        assert not worker_ends(0.5)
        agent.kill()
        assert worker_ends(5)
        assert child_ends(5)
        assert not neighbour_ends(0.3)


def test_a_worker_in_a_group_of_others_goes_alone(box, launcher):
    agent, worker, child, neighbour = start_agent(box, launcher, leads=False)
    with end_of(worker) as worker_ends, end_of(child) as child_ends, end_of(neighbour) as neighbour_ends:
        agent.kill()
        assert worker_ends(5)
        assert not child_ends(0.3)
        assert not neighbour_ends(0)


def test_an_agent_that_is_only_stopped_is_not_gone(box, launcher):
    agent, worker, _child, _neighbour = start_agent(box, launcher, leads=True)
    with end_of(worker) as worker_ends:
        agent.send_signal(signal.SIGSTOP)
        assert not worker_ends(0.7)
        agent.kill()
        assert worker_ends(5)


def test_a_descriptor_put_in_the_place_of_the_watch_kills_nobody(box, launcher):
    before = 'os.closerange(3, 256)\nopened = [os.open("/dev/zero", os.O_RDONLY) for _ in range(32)]'
    agent, worker, _child, _neighbour = start_agent(box, launcher, leads=True, before=before)
    with end_of(worker) as worker_ends:
        assert not worker_ends(0.7)
        agent.kill()
        assert worker_ends(5)


def test_an_agent_that_was_gone_before_the_attach_counts(box, launcher):
    gone = subprocess.Popen(["true"])
    gone.wait()
    environment = armed(box.path, TASKD_AGENT_PID=str(gone.pid))
    worker = launcher.start([sys.executable, "-c", "import signal; signal.pause()"], env=environment)
    assert worker.wait(10) == -signal.SIGKILL


def test_the_watch_takes_no_standard_descriptor(box, launcher):
    """Python would use it as its standard output, and fail with each print."""
    program = "import sys; sys.exit(3 if sys.stdin is sys.stdout is None else 4)"
    command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", program]
    worker = launcher.start(command, env=armed(box.path, TASKD_AGENT_PID=str(os.getpid())))
    assert worker.wait(10) == 3


def test_watching_can_begin_without_a_box(launcher):
    worker = launcher.start(["python", PROGRAMS / "watches.py"], env=plain())
    tasks = f"/proc/{worker.pid}/task"
    until(lambda: len(os.listdir(tasks)) > 1, "it watches")
    children = f"/proc/{worker.pid}/task/{worker.pid}/children"
    with open(children) as listing:
        watched = int(listing.read())
    os.kill(watched, signal.SIGKILL)
    assert worker.wait(10) == -signal.SIGKILL
