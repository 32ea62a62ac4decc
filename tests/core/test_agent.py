"""The table of one node: fence before start, each order once, nothing after the stop."""

import pytest

from taskd.core.agent import Evict, Fence, Node, RankState, Start, StopNode, Take, TellJoin, TellPause, TellRelease
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import (
    Condition,
    Directive,
    Ledger,
    Order,
    Place,
    RankOrder,
    RankStatus,
    Refuses,
    Stage,
    WorkerReport,
    WorldPlan,
)

R0, R1 = JobRank(0), JobRank(1)

PLAN = WorldPlan(
    generation=1,
    world_size=2,
    store_host="h",
    store_port=1,
    target_step=3,
    adopt=(),
    transfers=(),
    timeout_s=9.0,
)


def node() -> Node:
    fresh = Node()
    for rank in (0, 1):
        fresh.started(RankStatus(rank=JobRank(rank), incarnation=0, generation=0, stage=Stage.STARTING))
    return fresh


def directive(
    order: Order,
    generation: int = 1,
    sequence: int = 1,
    incarnations: tuple[int, int] = (0, 0),
    exit_code: int = 0,
    term: int = 1,
    holders: tuple[str, ...] = (),
) -> Directive:
    return Directive(
        job_id="job",
        sequence=sequence,
        generation=generation,
        order=order,
        ranks=tuple(
            RankOrder(rank=JobRank(rank), incarnation=inc, joins=inc > 0) for rank, inc in enumerate(incarnations)
        ),
        plan=PLAN if order is Order.JOIN else None,
        reason="why",
        exit_code=exit_code,
        places=tuple(Place(node_rank=NodeRank(place), agent_id=holder) for place, holder in enumerate(holders)),
        ledger=Ledger(term=term),
    )


def report(stage: Stage, generation: int = 1) -> WorkerReport:
    return WorkerReport(generation=generation, stage=stage, step=3, condition=Condition.CLEAN)


def test_a_wanted_successor_is_started_only_after_the_fenced_process_has_ended() -> None:
    it = node()
    assert it.obey(directive(Order.PAUSE, incarnations=(1, 0))) == [Fence(R0), TellPause(R1, 1, "why")]
    assert it.slots[R0].state is RankState.FENCED
    assert it.obey(directive(Order.PAUSE, sequence=2, incarnations=(1, 0))) == [TellPause(R1, 1, "why")]
    started = it.ended(R0, status=-9, cause="signal 9 (SIGKILL)", at_s=1.0)
    assert started == [Fence(R0), Start(R0, 1, 1, joins=True, term=1)]


def test_all_fences_come_before_the_first_start() -> None:
    it = node()
    it.ended(R1, status=-9, cause="signal 9 (SIGKILL)", at_s=1.0)
    assert it.obey(directive(Order.RUN, incarnations=(1, 1))) == [Fence(R0), Start(R1, 1, 1, joins=True, term=1)]


def test_a_death_is_told_at_once_and_its_successor_started_when_the_manager_wants_one() -> None:
    it = node()
    assert it.ended(R0, status=-9, cause="", at_s=1.0) == [Fence(R0)]
    assert it.slots[R0].status.stage is Stage.DEAD
    assert it.ended(R0, status=-9, cause="signal 9 (SIGKILL)", at_s=2.0) == []
    assert (it.slots[R0].status.cause, it.slots[R0].status.at_s) == ("signal 9 (SIGKILL)", 1.0)
    assert it.obey(directive(Order.PAUSE, incarnations=(1, 0)))[0] == Start(R0, 1, 1, joins=True, term=1)


def test_a_dead_rank_has_the_step_that_its_process_noted() -> None:
    """A step noted in an older world counts only after the newer world has committed a step."""
    it = node()
    it.report(R0, report(Stage.RESTORED))
    it.report(R1, report(Stage.COMMITTED))
    for rank in (R0, R1):
        it.ended(rank, status=-9, cause="signal 9 (SIGKILL)", step=8, at_s=1.0)
    assert [it.slots[rank].status.step for rank in (R0, R1)] == [3, 8]


def test_a_start_is_given_once_and_again_only_for_a_newer_world() -> None:
    it = node()
    it.ended(R0, status=-9, cause="", at_s=1.0)
    it.obey(directive(Order.PAUSE, incarnations=(1, 0)))
    assert Start(R0, 1, 1, joins=True, term=1) not in it.obey(directive(Order.PAUSE, sequence=2, incarnations=(1, 0)))
    assert it.obey(directive(Order.PAUSE, 2, 3, (1, 0)))[0] == Start(R0, 1, 2, joins=True, term=1)


def test_nothing_is_started_after_the_stop() -> None:
    it = node()
    it.ended(R0, status=-9, cause="", at_s=1.0)
    assert it.obey(directive(Order.STOP, incarnations=(1, 1), exit_code=1)) == [StopNode("why", 1)]
    assert it.obey(directive(Order.STOP, sequence=2, incarnations=(1, 1), exit_code=1)) == []
    assert it.ended(R1, status=-9, cause="", at_s=2.0) == [Fence(R1)]


def test_a_plan_goes_only_to_a_rank_that_has_paused_for_it() -> None:
    it = node()
    it.obey(directive(Order.PAUSE))
    it.report(R0, report(Stage.PAUSED))
    it.report(R1, report(Stage.PAUSED, generation=0))
    assert it.obey(directive(Order.JOIN, sequence=2)) == [TellJoin(R0, PLAN)]
    assert it.report(R1, report(Stage.PAUSED)) == [TellJoin(R1, PLAN)]
    assert it.report(R1, report(Stage.JOINED)) == []


def test_what_a_process_refuses_stands_in_its_reports_and_its_own_successor_lacks_what_it_had() -> None:
    it = node()
    it.refuses(R0, Refuses(no_rebuild="static graph", no_newcomer="PowerSGD"))
    it.report(R0, report(Stage.TRAINING))
    assert (it.slots[R0].status.no_rebuild, it.slots[R0].status.no_newcomer) == (
        "static graph",
        "PowerSGD",
    )
    it.ended(R0, status=-9, cause="signal 9 (SIGKILL)", at_s=1.0)
    assert (it.slots[R0].status.no_rebuild, it.slots[R0].status.no_newcomer) == ("", "PowerSGD")
    it.started(RankStatus(rank=R0, incarnation=1, generation=1, stage=Stage.STARTING))
    assert it.slots[R0].status.no_newcomer == ""


def test_a_process_that_connects_late_is_told_what_is_wanted() -> None:
    it = node()
    assert it.obey(directive(Order.PAUSE)) == [TellPause(R0, 1, "why"), TellPause(R1, 1, "why")]
    assert it.connected(R0) == [TellPause(R0, 1, "why")]


def test_a_second_release_of_one_generation_is_told() -> None:
    it = node()
    assert it.obey(directive(Order.RELEASE)) == [TellRelease(R0, 1, 1), TellRelease(R1, 1, 1)]
    assert it.obey(directive(Order.RELEASE)) == []
    assert it.obey(directive(Order.RELEASE, sequence=3)) == [
        TellRelease(R0, 1, 3),
        TellRelease(R1, 1, 3),
    ]


@pytest.mark.parametrize(("generation", "sequence"), [(0, 9), (1, 4), (1, 5)])
def test_an_older_directive_changes_nothing(generation: int, sequence: int) -> None:
    it = node()
    newest = directive(Order.RUN, 1, 5)
    it.obey(newest)
    assert it.obey(directive(Order.PAUSE, generation, sequence, (3, 3))) == []
    assert it.directive is newest


def test_a_report_after_the_end_changes_nothing() -> None:
    it = node()
    it.ended(R0, status=0, cause="exit code 0", at_s=1.0)
    assert it.report(R0, report(Stage.TRAINING)) == []
    assert it.slots[R0].status.stage is Stage.EXITED


def test_torchrun_may_start_all_processes_itself() -> None:
    it = node()
    it.obey(directive(Order.PAUSE, incarnations=(1, 0)))
    it.started(RankStatus(rank=R0, incarnation=2, generation=2, stage=Stage.STARTING))
    assert it.slots[R0].state is RankState.RUNNING
    assert it.connected(R0) == [TellPause(R0, 1, "why")]


# ---- places and managers


def holder() -> Node:
    it = node()
    it.agent_id, it.place = "me", NodeRank(0)
    return it


def test_a_node_that_is_not_named_any_more_ends_its_processes() -> None:
    it = holder()
    assert it.obey(directive(Order.PAUSE, incarnations=(1, 0), holders=("other",))) == [Evict()]
    assert (it.place, it.slots) == (None, {})
    assert it.obey(directive(Order.PAUSE, sequence=2, holders=("other",))) == []


def test_a_candidate_that_is_named_takes_the_place_and_starts_its_ranks() -> None:
    it = Node(agent_id="me")
    assert it.obey(directive(Order.PAUSE, holders=("other",))) == []
    assert it.obey(directive(Order.PAUSE, sequence=2, incarnations=(3, 0), holders=("me",))) == [Take(NodeRank(0))]
    assert it.occupy((R0,)) == [Start(R0, 3, 1, joins=True, term=1)]


def test_a_node_that_gets_another_place_ends_what_it_has_first() -> None:
    assert holder().obey(directive(Order.PAUSE, holders=("other", "me"))) == [Evict(), Take(NodeRank(1))]


def test_a_directive_that_names_no_holder_leaves_none() -> None:
    assert holder().obey(directive(Order.RUN)) == [Evict()]


def test_a_directive_of_no_term_and_one_of_a_job_that_forms_take_no_place_away() -> None:
    it = holder()
    it.obey(directive(Order.RUN, term=0))
    assert it.place == 0
    assert it.obey(directive(Order.FORM, sequence=2, holders=("other",))) == []
    assert it.place == 0


def test_nobody_takes_a_place_of_a_job_that_stops() -> None:
    it = Node(agent_id="me")
    assert it.obey(directive(Order.STOP, holders=("me",), exit_code=1)) == [StopNode("why", 1)]


def test_of_two_managers_the_one_with_the_higher_term_is_obeyed() -> None:
    it = node()
    newest = directive(Order.RUN, generation=1, sequence=20, term=20)
    it.obey(directive(Order.RUN, generation=3, sequence=7, term=1))
    it.obey(newest)
    assert it.obey(directive(Order.PAUSE, generation=4, sequence=8, incarnations=(5, 5), term=1)) == []
    assert it.directive is newest
