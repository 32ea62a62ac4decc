"""`--numa-binding`: refused and applied alike with and without taskd, and applied again when a rank is replaced.

Torch binds a rank to the CPUs near its GPU. The tests have none, so torch is made to find two (`programs/numa.py`).
"""

import json
import os
from pathlib import Path

import pytest

from tests.e2e.job import SCRIPTS, Job
from tests.e2e.plan import point
from tests.launch import Launcher
from tests.thorough import everyday
from tests.torchrun.conftest import Play
from tests.torchrun.twins import PROGRAMS, Launch, Pair, Seen, launch

MODES = ("node", "socket", "exclusive", "core-complex")
PROGRAM = str(PROGRAMS / "numa.py")
PATH = f"{PROGRAMS / 'bin'}:{os.environ['PATH']}"
COLD = "torchrun binds ranks to NUMA nodes, .* dead ranks are replaced by cold starts only"
REFUSED: dict[str, Launch] = {mode: launch(f"--numa-binding={mode}", "{observer}", ranks=1) for mode in MODES}
APPLIED: dict[str, Launch] = {
    mode: launch(f"--numa-binding={mode}", "{observer}", program=PROGRAM, PATH=PATH) for mode in MODES
}
_applied: dict[str, Pair] = {}
needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing to bind apart")


@pytest.mark.parametrize("mode", everyday(MODES, "node"))
def test_refused(play: Play, mode: str) -> None:
    """It is refused for lack of a GPU."""
    pair = play(REFUSED[mode])
    assert pair.taskd.statuses == pair.stock.statuses == [1]
    assert errors(pair.taskd) == errors(pair.stock)
    assert errors(pair.stock)


def errors(seen: Seen) -> set[str]:
    return {line for line in seen.console if "AssertionError" in line}


def applied(play: Play, mode: str) -> Pair:
    """Play each mode once, and return the result."""
    if mode not in _applied:
        _applied[mode] = play(APPLIED[mode])
    return _applied[mode]


@pytest.mark.parametrize("mode", MODES)
def test_applied(play: Play, mode: str) -> None:
    pair = applied(play, mode)
    pair.check(COLD)
    assert pair.stock.statuses == [0], pair.stock.text


@needs_two
def test_exclusive_cpus(play: Play) -> None:
    pair = applied(play, "exclusive")
    first, second = (set(rank["cpus"]) for _, rank in sorted(pair.taskd.ranks.items()))
    assert first
    assert second
    assert not first & second


@pytest.mark.thorough
@needs_two
def test_a_replaced_rank_is_bound_as_before(launcher: Launcher, run_dir: Path) -> None:
    """It starts cold, since a warm process is not bound. That is reported once."""
    job = Job(launcher, run_dir, 2)
    points = [point("one", 1, 3, "forward"), point("on", 1, 6, "begin")]
    plan = json.dumps({"folder": str(run_dir), "steps": 8, "points": points})
    options = ("--standalone", "--nproc_per_node=2", "--numa-binding=exclusive")
    command = ["python", PROGRAM, *options, str(SCRIPTS / "train.py"), plan]
    job.watch(launcher.start(command, env={**job.environment(), "PATH": PATH}))
    before = os.sched_getaffinity(job.held("one"))
    job.kill("one")
    record = job.recovered(1)
    assert record["warm"] == {"1": False}
    assert not record["restart"]
    assert os.sched_getaffinity(job.held("on")) == before != os.sched_getaffinity(job.pids[0])
    job.release("on")
    assert job.end() == 0
    assert job.output.count("dead ranks are replaced by cold starts only") == 1
