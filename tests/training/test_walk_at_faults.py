"""State outside the state is known at a fault, and searched for after it."""

import copy
from typing import Any

import pytest

from tests.e2e.job import Job
from tests.e2e.plan import point
from tests.launch import Launcher
from tests.training.walked import Mixing, Saved, Training, step_of


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(("steps", "found"), [(4, False), (5, True)])
def test_a_fault_before_anything_has_changed_ends_no_look(steps: int, found: bool, *, joins: bool) -> None:
    """A callback mixes in the fifth step. A living rank walks after the first commit, a newcomer at the fault."""
    one = Training()
    callback = Mixing(copy.deepcopy(one.network))

    def fault() -> None:
        try:
            raise RuntimeError("a peer is gone")
        except RuntimeError as error:
            one.looks.interrupted(error)
        one.state._recovery.drop_step()

    def train() -> None:
        while one.state.step < steps:
            step_of(one)
            if one.state.step == steps - 1 and not joins:
                fault()
                step_of(one)
            callback.on_step_end(one.state.step + 1, one.network)
            one.state.commit()
        if joins:
            fault()

    told = one.found(train, joins=joins)
    assert [text.startswith("callback.reference.first.weight (and 3 more of it) is") for text in told] == [True] * found


def test_no_part_is_asked_for_its_state_at_a_fault() -> None:
    """Its `state_dict()` may wait for a lost peer. Its values are no state outside of the state."""

    class Asked(Saved):
        gone = False
        latest: Any = None

        def state_dict(self) -> dict[str, Any]:
            assert not self.gone, "a peer is gone"
            return super().state_dict()

    one = Training()
    average = Asked(one.network)
    one = Training(replicated={"average": average})
    walks = []

    def train() -> None:
        while one.state.step < 5:
            step_of(one)
            average.update(one.network)
            average.latest = average.shadow["first.weight"] * 2
            if one.state.step == 3:
                average.gone = True
                try:
                    raise RuntimeError("a peer is gone")
                except RuntimeError as error:
                    before = one.looks._walks
                    one.looks.interrupted(error)
                    walks.append(one.looks._walks - before)
                average.gone = False
            one.state.commit()

    assert one.found(train) == []
    assert walks == [1]


def test_a_job_names_it_before_the_fault_and_starts_anew(launcher: Launcher, run_dir: Any) -> None:
    undisturbed = Job(launcher, run_dir / "calm", 2)
    job = Job(launcher, run_dir / "struck", 2)
    for one in (undisturbed, job):
        one.folder.mkdir()
    undisturbed.start("early.py", {"steps": 8, "shape": "average"}, env={"TASKD_PROCESS_ENABLE": None})
    assert undisturbed.end() == 0, undisturbed.output
    plan = {"steps": 8, "shape": "average", "points": [point("one", 1, 6, "begin")]}
    job.start("early.py", plan)
    job.held("one")
    job.says("average.shadow['weight'] (and 1 more of it) is changed by the training (")
    assert "early.py:" in job.output
    job.kill("one")
    assert job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert not job.named("attempt failed")
    assert job.results() == undisturbed.results()


def test_a_newcomer_to_a_job_past_its_first_steps_walks_behind_its_second_commit() -> None:
    """Its first commit ends the recovery."""
    one = Training()
    one.state._recovery.step = 100
    callback = Mixing(copy.deepcopy(one.network))
    walks: list[int] = []

    def train() -> None:
        one.state._recovery.drop_step()  # as every rank does when it receives a state
        while one.state.step < 115:
            step_of(one)
            callback.on_step_end(one.state.step + 1, one.network)
            one.state.commit()
            walks.append(one.looks._walks)

    (text,) = one.found(train, joins=True)
    assert text.startswith("callback.reference.first.weight")
    assert walks[:3] == [0, 1, 1]
    assert walks[-1] == 2
