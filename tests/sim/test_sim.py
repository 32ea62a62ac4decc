"""500 simulated jobs: no invariant is broken, and nearly every row of the tables is used."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskd.core.recovery import Phase
from taskd.core.recovery.phases import LIVE, WORLD
from tests.sim.recorder import recorders
from tests.sim.scenario import draw, sociable
from tests.sim.world import play, simulate

SEEDS = 500
SHORT = ("REARRANGING", "ANNOUNCING", "AWAITING_QUORUM")
NEWS = (Phase.STRAYED, Phase.SUSPECTING)
BEYOND = {
    "recovery": {
        # Of a manager that goes on with what others have begun: `test_two_managers.py`. A job hardly ever dumps.
        *(f"{phase.name}, OVERTAKEN" for phase in Phase),
        *(f"{phase.name}, DUMPED" for phase in Phase if phase is not Phase.RESUMING),
        *(f"{phase.name}, {event}" for phase in LIVE for event in ("JOINED", "RESTORED")),
        # Phases that are over within milliseconds, or in which ranks have nothing to report.
        *(f"ANNOUNCING, {event}" for event in ("STARTED", "PAUSED", "LOST", "EXITED", "NODE_LOST")),
        *(f"SUSPECTING, {event}" for event in ("STARTED", "COMMITTED", "EXITED")),
        *("AWAITING_QUORUM, STARTED", "AWAITING_QUORUM, EXITED", "REARRANGING, LOST", "REARRANGING, EXITED"),
        *("RESUMING, EXITED", "RESUMING, RESTORED", "RESTARTING, EXPIRED", "RESTARTING, PAUSED"),
        *("RESTARTING, FINISHED", "RESTARTING, EXITED"),
        # A second node that goes in such a moment, or most of them for longer than a job waits.
        *(f"{name}, NODE_LEAVES" for name in ("FORMING", *SHORT, "STRAYED", "RESUMING", "RESTARTING", "JOINING")),
        *(f"{name}, ISOLATED" for name in ("REARRANGING", "ANNOUNCING", *(phase.name for phase in (*NEWS, *WORLD)))),
        *(f"{name}, NODE_LOST" for name in ("FORMING", "AWAITING_QUORUM", "REARRANGING", "RESUMING")),
    },
    "node": {"FENCED, STARTED", "ENDED, REPORTED"},  # torchrun restarts the whole group itself
    "worker": {
        # Without a manager (ABANDON), commits outside the function, and orders that cross with what the rank just did.
        *(
            f"{state}, ABANDON"
            for state in ("SETUP", "TRAINING", "INTERRUPTED", "PAUSED", "JOINING", "FINISHED", "RELEASED")
        ),
        *(f"{state}, RELEASE" for state in ("SETUP", "TRAINING", "INTERRUPTED", "PAUSED", "JOINING", "RELEASED")),
        *(f"{state}, JOIN" for state in ("SETUP", "TRAINING", "INTERRUPTED", "JOINING", "FINISHED", "RELEASED")),
        *("SETUP, COMMITTED", "RELEASED, COMMITTED", "RELEASED, PAUSE"),
        *("INTERRUPTED, JOINED", "INTERRUPTED, RESTORED", "INTERRUPTED, RETURNED"),
        *("INTERRUPTED, COMMITTED", "INTERRUPTED, DUMPED"),
    },
}
"""Rows that these seeds may miss. `tests/core/test_rows.py` reaches every row."""


@pytest.mark.parametrize("seed", range(40))
def test_a_set_up_that_fails_in_newcomers_alone_costs_no_more_than_under_torchrun(seed: int) -> None:
    """Each kill costs one restart, of all; the job does all of its steps."""
    outcome = play(sociable(seed))
    assert (outcome.breach, outcome.ended) == ("", "every rank exited with status 0"), sociable(seed)


def test_no_seed_breaks_an_invariant() -> None:
    watched = recorders()
    with ExitStack() as stack:
        for recorder in watched.values():
            stack.enter_context(recorder.recording())
        outcomes = [simulate(seed) for seed in range(SEEDS)]
    broken = next((outcome for outcome in outcomes if outcome.breach), None)
    if broken is not None:
        trace = "\n".join(simulate(broken.seed, tracing=True).trace)
        pytest.fail(f"{trace}\n{draw(broken.seed)}\nseed {broken.seed}: {broken.breach}", pytrace=False)
    for name, recorder in watched.items():
        assert recorder.undeclared() == set(), name
        assert recorder.unused <= BEYOND[name], name
    assert sum(outcome.successes for outcome in outcomes) > SEEDS / 3
    assert sum(outcome.lives > 1 for outcome in outcomes) < SEEDS / 2


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
