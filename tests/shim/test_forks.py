"""A worker's children have no part in its box; a forked process can have a box of its own."""

import os
import signal

import pytest

from taskd.runtime.box.blackbox import Life
from tests.shim.armed import GATE, armed, plain, until

PARENT = """
import os, signal, subprocess, sys
from pathlib import Path
from taskd.runtime.box.recorder import BoxPhase, Recorder
r = Recorder()

def write(recorder):
    \"\"\"In every way there is.\"\"\"
    recorder.step(99)
    recorder.phase(BoxPhase.FINISHED)
    recorder.gil_beat()
    recorder.last_words(ValueError("a child's"))
    recorder._core.taskd_leave(recorder._core.taskd_enter(1, 2, 3, 4, 5))
    return recorder.attached
"""

FORKED = """
r.step(10)
pid = os.fork()
if pid == 0:
    assert not write(r)
    sys.exit(4)                     # through the exit handlers
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
assert r.attached
"""

EXECUTED = """
r.step(10)
child = PARENT + "print(write(r))"
for environment in (os.environ, {**os.environ, "LD_PRELOAD": GATE}):
    out = subprocess.run([sys.executable, "-c", child], env=environment, capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("False\\n", "")
"""

LOADED = """
import torch.utils.data

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return int(write(Recorder()))

if __name__ == "__main__":
    r.step(10)
    for method in ("fork", "forkserver", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, multiprocessing_context=method)
        assert [int(batch) for batch in loader] == [0] * 8
"""


@pytest.mark.parametrize(
    "program", ["child_forked.py", "child_executed.py", "child_loads.py"], ids=["fork", "subprocess", "DataLoader"]
)
def test_children_never_write_into_the_box(program, box, launcher):
    worker = launcher.start(["python", PROGRAMS / program], env=armed(box.path))
    assert worker.wait(50) == 0, launcher.output(worker)
    said = box.read()
    assert (said.owner_pid, said.claims, said.step, said.exit_status) == (worker.pid, 1, 10, 0)
    assert (said.phase, said.gil_ns, said.events, said.dropped) == (0, 0, 0, 0)
    assert box.postmortem().last_words is None
    assert box.communicators() == []


def test_a_forked_child_lives_and_dies_with_a_box_of_its_own(make_box, launcher):
    first, second = make_box(), make_box()
    parent = launcher.start(["python", PROGRAMS / "child_with_box.py", second.path], env=armed(first.path))
    until(lambda: second.read().step == 20 and first.read().step == 10, "both have written")
    child = second.read()
    assert (child.rank, child.incarnation, child.life) == (8, 1, Life.HELD)
    assert child.owner_pid not in (0, parent.pid)
    os.kill(child.owner_pid, signal.SIGKILL)
    assert second.await_death(10)
    assert not first.await_death(0.3)
    parent.kill()
    assert first.await_death(10)


def test_a_template_without_a_box_forks_single_threaded_workers(make_box, launcher):
    boxes = [make_box() for _ in range(3)]
    template = launcher.start(["python", PROGRAMS / "template.py", *(box.path for box in boxes)], env=plain())
    assert template.wait(30) == 0, launcher.output(template)
    said = [box.read() for box in boxes]
    assert [one.rank for one in said] == [one.step for one in said] == [one.exit_status for one in said] == [0, 1, 2]
    assert len({one.owner_pid for one in said}) == 3
