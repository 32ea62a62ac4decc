"""500 simulated jobs: no invariant is broken, and nearly every row of the tables is used."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sim.crowded import crowded
from tests.sim.recorder import recorders
from tests.sim.scenario import draw, sociable
from tests.sim.world import play, simulate

SEEDS = 500
CROWDED = 2120
MOST = 20
"""Number of rows of all tables that the seeds may miss, each for a reason."""
BEYOND = {
    "recovery": {
        # Two managers: an agent obeys the older one with a newer world. The newer manager already leads this agent or
        # does not reach it, and is in a phase that needs all agents to obey its own orders, or that lasts moments.
        "AWAITING_QUORUM, OVERTAKEN",
        "FINISHING, OVERTAKEN",
        "JOINING, OVERTAKEN",
        "REARRANGING, OVERTAKEN",
        "RESUMING, OVERTAKEN",
        "SUSPECTING, OVERTAKEN",
        # All have paused: only a second manager can have started a process since, for a world of the same number.
        "ANNOUNCING, STARTED",
        # A new manager takes over when some have written their checkpoint and others never do, and receives that report
        # again within the moments in which it asks for the cause.
        "STRAYED, DUMPED",
        "SUSPECTING, DUMPED",
        # Bits do not flip here: the simulated processes report no digests of their states.
        "RUNNING, CORRUPTED",
    },
    "node": {"FENCED, STARTED"},  # torchrun itself restarts the whole group, between a fence and the end it causes
    # No simulated agent ends by an error of its own while its torchrun continues (`tests/ends` does that for real),
    # and no script catches its own exception.
    "worker": {
        *(
            f"{state}, DESERTED"
            for state in ("SETUP", "TRAINING", "INTERRUPTED", "PAUSED", "JOINING", "FINISHED", "RELEASED")
        ),
        "TRAINING, ENTER",
        "INTERRUPTED, ENTER",
    },
}
"""Rows that these seeds miss. `tests/core/test_rows.py` reaches every row."""


@pytest.mark.parametrize("seed", range(40))
def test_a_set_up_that_fails_in_newcomers_alone_costs_no_more_than_under_torchrun(seed: int) -> None:
    """Each kill costs one restart of all ranks, and the job completes all steps."""
    outcome = play(sociable(seed))
    assert (outcome.breach, outcome.ended) == ("", "every rank exited with status 0"), sociable(seed)


def test_no_seed_breaks_an_invariant() -> None:
    watched = recorders()
    with ExitStack() as stack:
        for recorder in watched.values():
            stack.enter_context(recorder.recording())
        outcomes = [simulate(seed) for seed in range(SEEDS)]
        in_the_midst = [play(crowded(seed)) for seed in range(CROWDED)]
    for drawn, played in ((draw, outcomes), (crowded, in_the_midst)):
        broken = next((outcome for outcome in played if outcome.breach), None)
        if broken is not None:
            trace = "\n".join(play(drawn(broken.seed), tracing=True).trace)
            text = f"{drawn.__name__} seed {broken.seed}: {broken.breach}"
            pytest.fail(f"{trace}\n{drawn(broken.seed)}\n{text}", pytrace=False)
    for name, recorder in watched.items():
        assert recorder.undeclared() == set(), name
        assert recorder.unused <= BEYOND[name], name
    assert sum(outcome.successes for outcome in outcomes) > SEEDS / 3
    assert sum(outcome.successes for outcome in in_the_midst) > CROWDED / 3
    assert sum(outcome.lives > 1 for outcome in outcomes) < SEEDS / 2


@pytest.mark.parametrize("seed", [2216, 2222, 4207, 5659, 6313])
def test_a_crowded_job_that_has_broken_an_invariant_once_does_not(seed: int) -> None:
    assert play(crowded(seed)).breach == ""


def test_few_rows_are_beyond_the_simulation() -> None:
    for name, recorder in recorders().items():
        assert BEYOND[name] <= recorder.unused, f"rows that there are: {name}"
    assert sum(map(len, BEYOND.values())) <= MOST


@pytest.mark.parametrize("seed", [7, 77, 777])
def test_a_seed_replays_exactly(seed: int) -> None:
    first, second, untraced = simulate(seed, tracing=True), simulate(seed, tracing=True), simulate(seed)
    assert first == second
    assert first.trace
    assert (untraced.virtual_s, untraced.ended) == (first.virtual_s, first.ended)


def test_the_command_line_counts_and_traces(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]

    def run(*args: str) -> str:
        command = [sys.executable, "-m", "tests.sim", *args]
        return subprocess.run(
            command, cwd=root, env=dict(os.environ), check=True, capture_output=True, text=True
        ).stdout

    summary = json.loads(run("--seeds", "20", "--json").splitlines()[-1])
    assert (summary["seeds"], summary["failures"]) == (20, 0)
    assert "publishes run generation 0" in run("--seed", "3", "--trace")
