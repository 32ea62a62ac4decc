"""A worker's children have no part in its box; a forked process can have a box of its own."""

import os
import signal

import pytest

from taskd.runtime.box.blackbox import Life
from tests.shim.armed import PROGRAMS, armed, plain, until


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
