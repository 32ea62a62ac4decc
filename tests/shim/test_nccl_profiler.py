"""Run times of NCCL's kernels as the box shows them: this core is its profiler plugin, without a GPU."""

import json
from itertools import pairwise

import pytest

from taskd.runtime.box.blackbox import Backend, Operation
from tests.shim.armed import CORE, PROGRAMS, plain
from tests.shim.test_collectives import build_nccl, run

ENQUEUED = 1000
"""Number of operations: with the kernels' own, more than the ring keeps."""


def kernels(box):
    """Return the recorded periods, oldest first."""
    found = [event for event in reversed(box.events()) if event.operation is Operation.KERNEL]
    assert {(event.backend, event.comm, event.number) for event in found} <= {(Backend.NCCL, 0, 0)}
    return found


@pytest.mark.parametrize("interface", [3, 4, 5])
def test_the_time_in_which_any_kernel_runs(interface, box, launcher):
    status, output = launcher.run(["python", PROGRAMS / "kernels.py", box.path, CORE, str(interface)], env=plain())
    assert status == 0, output
    starts, stops, again, closed, third, renewed, last = json.loads(output)
    periods = [(starts, stops), (again, closed), (third, renewed), (renewed, last)]
    noted = kernels(box)
    assert len(noted) == len(periods), noted
    for event, (begun, ended) in zip(noted, periods, strict=True):
        assert begun[0] <= event.entered_ns <= begun[1]
        assert ended[0] <= event.left_ns <= ended[1]
    assert noted[0].left_ns - noted[0].entered_ns > 60e6


def test_a_kernel_that_runs_while_the_host_enqueues_much_keeps_its_place(box, launcher, tmp_path):
    """Each of its periods in the ring has ended, but for the newest, and none is missing between them."""
    body = (
        "from tests.nccl import Communicator, Plugin\n"
        f"Communicator(Plugin({str(CORE)!r})).start()\n"
        f"print(libraries[0].reduce_often({ENQUEUED}))"
    )
    assert run(body, [build_nccl(launcher, tmp_path)], box, launcher) == "0\n"
    noted = kernels(box)
    assert len(noted) > 5
    for one, following in pairwise(noted):
        assert one.entered_ns < one.left_ns <= following.entered_ns
        assert 128 < following.ticket - one.ticket <= 130
    assert noted[-1].left_ns == 0
