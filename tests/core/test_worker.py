"""Table of one rank: out of the collectives, into the next world, out of the job."""

import copy

import pytest

from taskd.core.worker import ORDERS, TABLE, Break, GiveUp, Input, Report, Wake, Worker, WorkerEvent, WorkerState
from taskd.errors import TransitionError
from taskd.wire.messages import Condition, Stage, WorldPlan

CLEAN, EMPTY, TORN = Condition.CLEAN, Condition.EMPTY, Condition.TORN


def plan(generation: int) -> WorldPlan:
    return WorldPlan(
        generation=generation,
        world_size=2,
        store_host="h",
        store_port=1,
        target_step=3,
        adopt=(),
        transfers=(),
        timeout_s=9.0,
    )


def training(step: int = 3) -> Worker:
    worker = Worker()
    assert worker.feed(Input(WorkerEvent.ENTER, step=step, condition=CLEAN)) == [Report(0, Stage.TRAINING, step, CLEAN)]
    return worker


def paused(generation: int = 1) -> Worker:
    worker = training()
    worker.feed(Input(WorkerEvent.PAUSE, generation=generation))
    worker.feed(Input(WorkerEvent.RAISED, step=3, condition=CLEAN, cause="RuntimeError"))
    return worker


def finished() -> Worker:
    worker = training()
    worker.feed(Input(WorkerEvent.RETURNED, step=3, condition=CLEAN))
    return worker


def test_a_survivor_comes_out_joins_and_trains() -> None:
    worker = training()
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == [Break.BREAK]
    assert worker.interrupted
    out = worker.feed(Input(WorkerEvent.RAISED, step=3, condition=CLEAN, cause="RuntimeError: closed"))
    assert out == [Report(1, Stage.PAUSED, 3, CLEAN, "RuntimeError: closed")]
    assert worker.feed(Input(WorkerEvent.JOIN, plan=plan(1))) == [Break.MEND, Wake(plan(1))]
    assert worker.feed(Input(WorkerEvent.JOINED, step=3, condition=CLEAN)) == [Report(1, Stage.JOINED, 3, CLEAN)]
    assert worker.feed(Input(WorkerEvent.RESTORED, step=3, condition=CLEAN)) == [Report(1, Stage.RESTORED, 3, CLEAN)]
    assert worker.feed(Input(WorkerEvent.COMMITTED, step=4, condition=CLEAN)) == [Report(1, Stage.COMMITTED, 4, CLEAN)]
    assert worker.feed(Input(WorkerEvent.COMMITTED, step=5, condition=CLEAN)) == []
    assert (worker.state, worker.generation, worker.step) == (WorkerState.TRAINING, 1, 5)


def test_a_pause_at_the_commit_breaks_nothing_until_it_is_told_again_without_that() -> None:
    worker = training()
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1, at_commit=True)) == []
    assert worker.interrupted
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1, at_commit=True)) == []
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == [Break.BREAK]
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == []
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1, at_commit=True)) == []


def test_a_pause_at_the_commit_of_a_rank_that_is_out_already_changes_nothing() -> None:
    worker = training()
    worker.feed(Input(WorkerEvent.PAUSE, generation=1, at_commit=True))
    out = worker.feed(Input(WorkerEvent.RAISED, step=4, condition=CLEAN))
    assert out == [Report(1, Stage.PAUSED, 4, CLEAN)]
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == []


def test_a_world_that_is_being_built_is_left_at_once() -> None:
    worker = paused()
    worker.feed(Input(WorkerEvent.JOIN, plan=plan(1)))
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=2, at_commit=True)) == [Break.BREAK]


def test_a_newcomer_waits_for_the_newest_world() -> None:
    worker = Worker(generation=1, joins=True)
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=2)) == []
    assert worker.feed(Input(WorkerEvent.ENTER, step=0, condition=CLEAN)) == [Report(2, Stage.PAUSED, -1, EMPTY)]
    assert worker.feed(Input(WorkerEvent.JOIN, plan=plan(1))) == []
    assert worker.feed(Input(WorkerEvent.JOIN, plan=plan(2))) == [Break.MEND, Wake(plan(2))]
    worker.feed(Input(WorkerEvent.RESTORED, step=3, condition=CLEAN))
    assert not worker.joins


def test_a_pause_while_joining_breaks_it_off_and_what_was_under_way_is_not_reported() -> None:
    worker = paused()
    worker.feed(Input(WorkerEvent.JOIN, plan=plan(1)))
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=2)) == [Break.BREAK]
    assert worker.feed(Input(WorkerEvent.JOINED, step=3, condition=CLEAN)) == []
    assert worker.feed(Input(WorkerEvent.RESTORED, step=3, condition=CLEAN)) == []
    assert worker.feed(Input(WorkerEvent.COMMITTED, step=4, condition=CLEAN)) == []
    assert worker.feed(Input(WorkerEvent.RAISED, step=3, condition=TORN)) == [Report(2, Stage.PAUSED, 3, TORN)]


def test_a_join_that_fails_by_itself_is_reported_in_its_own_generation() -> None:
    worker = paused()
    worker.feed(Input(WorkerEvent.JOIN, plan=plan(1)))
    assert worker.feed(Input(WorkerEvent.RAISED, step=3, condition=TORN)) == [Report(1, Stage.PAUSED, 3, TORN)]
    again = worker.feed(Input(WorkerEvent.PAUSE, generation=2))
    assert again == [Break.BREAK, Report(2, Stage.PAUSED, 3, TORN)]


def test_who_returns_while_interrupted_pauses_instead_of_finishing() -> None:
    worker = training()
    worker.feed(Input(WorkerEvent.PAUSE, generation=1))
    assert worker.feed(Input(WorkerEvent.RETURNED, step=9, condition=CLEAN)) == [Report(1, Stage.PAUSED, 9, CLEAN)]


def test_who_has_finished_pauses_again_for_a_fault_of_others() -> None:
    worker = training()
    assert worker.feed(Input(WorkerEvent.RETURNED, step=9, condition=CLEAN)) == [Report(0, Stage.FINISHED, 9, CLEAN)]
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == [Break.BREAK, Report(1, Stage.PAUSED, 9, CLEAN)]


def test_a_release_lets_go_and_the_next_function_trains_again() -> None:
    worker = training()
    worker.feed(Input(WorkerEvent.RETURNED, step=9, condition=CLEAN))
    assert worker.feed(Input(WorkerEvent.RELEASE, generation=0)) == [Report(0, Stage.RELEASED, 9, CLEAN), Wake(None)]
    assert worker.feed(Input(WorkerEvent.ENTER, step=9, condition=CLEAN)) == [Report(0, Stage.TRAINING, 9, CLEAN)]


def test_a_pause_outside_takes_effect_at_the_next_function() -> None:
    worker = training()
    worker.feed(Input(WorkerEvent.RETURNED, step=9, condition=CLEAN))
    worker.feed(Input(WorkerEvent.RELEASE, generation=0))
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=1)) == []
    assert worker.feed(Input(WorkerEvent.ENTER, step=9, condition=CLEAN)) == [Report(1, Stage.PAUSED, 9, CLEAN)]


def test_a_function_that_has_raised_may_be_called_again() -> None:
    worker = training()
    assert worker.feed(Input(WorkerEvent.ENTER, step=4, condition=CLEAN)) == [], "its stage is known"
    assert worker.state is WorkerState.TRAINING
    worker.feed(Input(WorkerEvent.PAUSE, generation=1))
    assert worker.feed(Input(WorkerEvent.ENTER, step=4, condition=CLEAN)) == [Report(1, Stage.PAUSED, 4, CLEAN)]


@pytest.mark.parametrize("generation", [0, 1])
def test_an_older_pause_changes_nothing(generation: int) -> None:
    worker = paused()
    worker.feed(Input(WorkerEvent.JOIN, plan=plan(1)))
    assert worker.feed(Input(WorkerEvent.PAUSE, generation=generation)) == []
    assert worker.state is WorkerState.JOINING


def test_an_abandoned_rank_lets_its_exception_go_on() -> None:
    worker = paused()
    assert worker.feed(Input(WorkerEvent.ABANDON, cause="no manager")) == [Break.MEND, GiveUp("no manager")]
    assert worker.state is WorkerState.RELEASED


def test_a_commit_outside_the_resilient_function_is_no_news() -> None:
    worker = Worker()
    assert worker.feed(Input(WorkerEvent.COMMITTED, step=1, condition=CLEAN)) == []
    assert worker.step == 1


def test_what_cannot_happen_raises_with_state_and_generation() -> None:
    with pytest.raises(TransitionError, match="RESTORED in state TRAINING, generation 0"):
        training().feed(Input(WorkerEvent.RESTORED, step=3, condition=CLEAN))


def test_a_release_that_is_told_again_does_not_end_the_next_resilient_function() -> None:
    """The script had closed the link. The process has a new one, and receives the order again."""
    worker = training()
    worker.feed(Input(WorkerEvent.RETURNED, step=4, condition=CLEAN))
    assert Wake(None) in worker.feed(Input(WorkerEvent.RELEASE, sequence=7))
    worker.feed(Input(WorkerEvent.ENTER, step=4, condition=CLEAN))
    worker.feed(Input(WorkerEvent.RETURNED, step=8, condition=CLEAN))
    assert worker.feed(Input(WorkerEvent.RELEASE, sequence=7)) == []
    assert worker.state is WorkerState.FINISHED
    assert Wake(None) in worker.feed(Input(WorkerEvent.RELEASE, sequence=9))


@pytest.mark.parametrize("event", ORDERS)
@pytest.mark.parametrize("state", WorkerState)
def test_an_order_that_has_crossed_with_something_changes_nothing(state: WorkerState, event: WorkerEvent) -> None:
    worker = Worker(state=state)
    if (state, event) not in TABLE:
        before = copy.deepcopy(worker)
        assert worker.feed(Input(event, generation=9, plan=plan(9), sequence=9)) == []
        assert worker == before


def deserted(worker: Worker) -> list[object]:
    return list(worker.feed(Input(WorkerEvent.DESERTED, cause="the agent has ended")))


def test_whoever_waits_when_the_agent_ends_gives_up() -> None:
    for waiting in (paused(), finished()):
        assert deserted(waiting) == [Break.MEND, GiveUp("the agent has ended")]
        assert waiting.state is WorkerState.RELEASED


def test_whoever_comes_to_wait_later_gives_up_at_once() -> None:
    """The same holds in a second resilient function, and for a pause that arrived before it began."""
    worker = training()
    assert deserted(worker) == []
    end = [Report(0, Stage.FINISHED, 3, CLEAN), Break.MEND, GiveUp("the agent has ended")]
    assert worker.feed(Input(WorkerEvent.RETURNED, step=3, condition=CLEAN)) == end
    worker.pause_generation = 4
    assert worker.feed(Input(WorkerEvent.ENTER, step=3, condition=CLEAN)) == [Report(0, Stage.TRAINING, 3, CLEAN)]
    out = worker.feed(Input(WorkerEvent.RAISED, step=3, condition=TORN, cause="RuntimeError"))
    assert out[1:] == [Break.MEND, GiveUp("the agent has ended")]


def test_a_pause_that_waits_for_a_commit_is_off_when_the_agent_ends() -> None:
    worker = training()
    worker.feed(Input(WorkerEvent.PAUSE, generation=1, at_commit=True))
    assert deserted(worker) == []
    assert not worker.interrupted
    assert worker.feed(Input(WorkerEvent.COMMITTED, step=4, condition=CLEAN)) == [Report(0, Stage.COMMITTED, 4, CLEAN)]


def test_a_newcomer_without_an_agent_gives_up() -> None:
    worker = Worker(generation=1, joins=True)
    assert deserted(worker) == []
    assert worker.feed(Input(WorkerEvent.ENTER))[1:] == [Break.MEND, GiveUp("the agent has ended")]
