"""The pure functions: restore plan, strategy, membership, record."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from taskd.core.membership.health import Health, health
from taskd.core.policy import Membership, Strategy, StrategyPolicy
from taskd.core.recovery.ranks import plan_restore
from taskd.core.recovery.record import FaultRecord, Resumption
from taskd.core.recovery.strategy import Decision, KeepingRefusals, Situation, choose
from taskd.core.recovery.world import RankView
from taskd.runtime.manager.journal import as_fields, as_text
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, RankStatus, Stage


def policy(*allowed: Strategy, min_nodes: int = 1, checkpoints: bool = False) -> StrategyPolicy:
    """Return the strategy policy of a job of four nodes that allows these strategies."""
    return StrategyPolicy(allowed, min_nodes=min_nodes, dump_to=b"/shelf" if checkpoints else b"")


def holds(step: int, condition: Condition, replicas: str = "") -> RankStatus:
    """Return the status of a rank that has paused with this state."""
    return RankStatus(
        rank=JobRank(0),
        incarnation=0,
        generation=0,
        stage=Stage.PAUSED,
        step=step,
        condition=condition,
        replicas=replicas,
    )


ALL = policy(*Strategy)
RANKS = st.integers(0, 9).map(JobRank)
HELD = st.dictionaries(
    RANKS, st.builds(holds, st.integers(-1, 5), st.sampled_from(Condition), st.just("")), min_size=1, max_size=8
)
OF_SETS = st.dictionaries(
    RANKS,
    st.builds(holds, st.integers(3, 5), st.sampled_from(Condition), st.sampled_from(["", "a", "b"])),
    min_size=1,
    max_size=10,
)

# ---- restore


def by_rank(*held: RankStatus) -> dict[JobRank, RankStatus]:
    return {JobRank(rank): one for rank, one in enumerate(held)}


def keys(held: dict[JobRank, RankStatus]) -> dict[JobRank, str | None]:
    return {rank: one.replicas for rank, one in held.items()}


@given(HELD | OF_SETS)
def test_every_rank_ends_at_the_target_with_a_consistent_state_of_its_set(held: dict[JobRank, RankStatus]) -> None:
    restore = plan_restore(held, keys(held))
    if restore is None:
        return
    adopted = set(restore.adopt)
    assert all(held[rank].condition is Condition.STEPPED for rank in adopted)
    reached = {r: h.step + (r in adopted) for r, h in held.items() if h.condition is Condition.CLEAN or r in adopted}
    good = {rank for rank, step in reached.items() if step == restore.target_step}
    assert adopted <= good
    for transfer in restore.transfers:
        assert transfer.donor in good
        assert not good & set(transfer.receivers)
        assert {held[rank].replicas for rank in transfer.receivers} == {held[transfer.donor].replicas}
        good |= set(transfer.receivers)
    assert good == set(held)


@given(HELD)
def test_the_newest_clean_step_is_never_given_up(held: dict[JobRank, RankStatus]) -> None:
    clean = [h.step for h in held.values() if h.condition is Condition.CLEAN]
    restore = plan_restore(held, keys(held))
    assert not clean or (restore is not None and restore.target_step == max(clean) and not restore.adopt)


@given(HELD | OF_SETS)
def test_there_is_a_plan_for_the_newest_committed_step_that_every_set_can_come_to(
    held: dict[JobRank, RankStatus],
) -> None:
    sets: dict[str, set[int]] = {}
    for h in held.values():
        reached = {Condition.CLEAN: {h.step}, Condition.STEPPED: {h.step + 1}}.get(h.condition, set())
        sets.setdefault(h.replicas, set()).update(reached)
    common = set.intersection(*sets.values())
    committed = common & {h.step for h in held.values() if h.condition is Condition.CLEAN}
    restore = plan_restore(held, keys(held))
    assert (restore is not None) == bool(common)
    assert restore is None or restore.target_step == max(committed or common)


def test_a_set_whose_ranks_have_stepped_counts_that_step_where_another_set_has_committed_it() -> None:
    held = by_rank(
        holds(4, Condition.STEPPED, "a"),
        holds(5, Condition.CLEAN, "b"),
        holds(-1, Condition.EMPTY, "a"),
        holds(4, Condition.CLEAN, "b"),
    )
    restore = plan_restore(held, keys(held))
    assert restore is not None
    assert (restore.target_step, restore.adopt) == (5, (0,))
    assert [(t.donor, t.receivers) for t in restore.transfers] == [(0, (2,)), (1, (3,))]


def test_a_set_without_a_holder_leaves_no_plan() -> None:
    held = by_rank(holds(4, Condition.CLEAN, "a"), holds(-1, Condition.EMPTY, "b"))
    assert plan_restore(held, keys(held)) is None


def test_who_is_clean_at_the_target_keeps_its_state() -> None:
    held = by_rank(holds(4, Condition.CLEAN), holds(5, Condition.CLEAN), holds(5, Condition.CLEAN))
    restore = plan_restore(held, keys(held))
    assert restore is not None
    assert [(t.donor, t.receivers) for t in restore.transfers] == [(1, (0,))]


# ---- strategy


def test_a_loss_gets_a_new_process_in_place() -> None:
    decision = choose(Situation(lost=(JobRank(2),)), ALL, {})
    assert (decision.strategy, decision.restart) == (Strategy.RECOVER_IN_PLACE, False)
    assert decision.reason == (
        "rank 2 gets a new process on its node, all others stay; not retry: rank 2 has no process"
    )


def test_without_a_loss_the_groups_are_rebuilt() -> None:
    decision = choose(Situation(lost=()), ALL, {})
    assert (decision.strategy, decision.reason) == (
        Strategy.RETRY,
        "every process lives: the groups are rebuilt and the step is redone",
    )


@pytest.mark.parametrize(
    ("situation", "why"),
    [
        (
            Situation(lost=(JobRank(1),), uncooperative=(JobRank(0),)),
            "not recover-in-place: rank 0 is not inside a resilient function",
        ),
        (
            Situation(
                lost=(JobRank(0), JobRank(1)), refusals=KeepingRefusals(no_survivor="no rank is left to give its state")
            ),
            "not recover-in-place: no rank is left to give its state",
        ),
        (Situation(lost=(), refusals=KeepingRefusals(no_rebuild="rank 0: a hook")), "not retry: rank 0: a hook"),
        (
            Situation(lost=(JobRank(1),), refusals=KeepingRefusals(no_newcomer="rank 0: PowerSGD")),
            "not recover-in-place: rank 0: PowerSGD",
        ),
        (
            Situation(lost=(JobRank(1),), refusals=KeepingRefusals(no_donor="no rank holds a consistent state")),
            "not recover-in-place: no rank holds a consistent state",
        ),
    ],
)
def test_when_all_start_anew_the_reason_is_told(situation: Situation, why: str) -> None:
    decision = choose(situation, ALL, {})
    assert (decision.strategy, decision.restart) == (Strategy.RECOVER_IN_PLACE, True)
    assert decision.reason.startswith("all processes start anew")
    assert why in decision.reason


def test_who_can_have_no_newcomer_goes_on_without_one() -> None:
    said = "rank 0: PowerSGD"
    assert choose(Situation(lost=(), refusals=KeepingRefusals(no_newcomer=said)), ALL, {}).strategy is Strategy.RETRY
    fewer = Situation(lost=(JobRank(1),), refusals=KeepingRefusals(no_newcomer=said), places=2, failing=1)
    assert choose(fewer, policy(Strategy.ELASTIC_TRAINING), {}).restart is False


def test_exit_tells_why_all_else_was_passed_over() -> None:
    decision = choose(Situation(lost=(JobRank(1),), unreachable=(JobRank(1),)), policy(Strategy.RECOVER_IN_PLACE), {})
    assert decision.strategy is Strategy.EXIT
    assert decision.reason == (
        "not retry: the job does not allow it; not recover-in-place: no agent on the node of rank 1; "
        "not recover: the job does not allow it; "
        "not elastic-training: the job does not allow it; not dump: the job does not allow it"
    )


def test_what_has_failed_is_not_tried_again() -> None:
    failed = {(Strategy.RETRY, False): "three worlds were not built"}
    decision = choose(Situation(lost=()), ALL, failed)
    assert decision.restart
    assert "not retry: three worlds were not built" in decision.reason
    assert choose(Situation(lost=()), ALL, failed | {(Strategy.RECOVER_IN_PLACE, True): "so"}).strategy is Strategy.EXIT


@given(
    st.builds(
        Situation,
        lost=st.sampled_from([(), (1,)]),
        unreachable=st.sampled_from([(), (1,)]),
        uncooperative=st.sampled_from([(), (0,)]),
        refusals=st.builds(
            KeepingRefusals,
            no_survivor=st.sampled_from(["", "no rank is left"]),
            no_survivor_elsewhere=st.sampled_from(["", "no rank is left elsewhere"]),
            no_shrinking=st.sampled_from(["", "a set is not known"]),
            no_donor=st.sampled_from(["", "no rank holds a consistent state"]),
        ),
    ),
    st.sets(st.sampled_from(Strategy)),
)
def test_a_choice_is_allowed_or_exit(situation: Situation, allowed: set[Strategy]) -> None:
    decision = choose(situation, policy(*allowed), {})
    assert decision.strategy in allowed or decision.strategy is Strategy.EXIT
    assert decision.reason


# ---- membership


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [(0.0, Health.ALIVE), (0.5, Health.ALIVE), (0.6, Health.SUSPECT), (9.9, Health.SUSPECT), (10.0, Health.DEAD)],
)
def test_silence_becomes_suspicion_and_then_death(silent_s: float, expected: Health) -> None:
    assert health(50.0, 50.0 + silent_s, Membership()) is expected


# ---- record


def test_of_a_start_of_all_it_is_told_how_long_it_took_and_not_where_the_script_goes_on() -> None:
    record = FaultRecord(10.0, 5)
    record.begin_attempt(1)
    record.resumption = Resumption(5)
    record.begin_attempt(2)
    record.decision = Decision(Strategy.RECOVER, True, "")
    record.close(10.029, {})
    assert record.phases_ms() == {"started": 29.0}
    assert as_fields(record, 1)["target_step"] == -1
    assert "all processes started anew after 29 ms" in as_text(record, 1)
    assert "the script resumes by itself" in as_text(record, 1)
    assert "goes on after step" not in as_text(record, 1)


def test_phases_are_told_as_far_as_they_were_reached() -> None:
    record = FaultRecord(10.0, 5)
    record.begin_attempt(1)
    record.milestones.paused_s, record.milestones.replaced_s = 10.01, 10.03
    assert record.phases_ms() == {"pause": 10.0, "replace": 30.0}
    record.begin_attempt(2)
    assert record.phases_ms() == {}
    record.milestones.paused_s, record.milestones.replaced_s, record.milestones.planned_s = 10.5, 10.6, 10.6
    record.milestones.joined_s, record.milestones.restored_s = 10.7, 10.75
    status = RankStatus(rank=JobRank(0), incarnation=1, generation=2, stage=Stage.COMMITTED, pid=7, warm=True)
    status = structs.replace(status, inexact="random numbers of step 4 not known")
    place = NodeRank(0)
    views = {JobRank(0): RankView(place, 1, joins=True, status=status), JobRank(1): RankView(place)}
    record.close(11.0, views)
    assert record.phases_ms() == {
        "pause": 500.0,
        "replace": 600.0,
        "rebuild": 100.0,
        "restore": 50.0,
        "first_step": 250.0,
        "total": 1000.0,
    }
    assert (record.processes.kept, record.processes.replaced, record.processes.warm) == ({}, {0: 7}, {0: True})
    assert as_fields(record, 1)["inexact"] == {"0": "random numbers of step 4 not known"}
    assert as_text(record, 1).endswith(". Not exact: rank 0: random numbers of step 4 not known")


@pytest.mark.parametrize(
    ("least", "chosen"), [(0, Strategy.ELASTIC_TRAINING), (2, Strategy.ELASTIC_TRAINING), (3, Strategy.EXIT)]
)
def test_torchruns_own_minimum_of_nodes_holds(least: int, chosen: Strategy) -> None:
    situation = Situation(lost=(), unreachable=(JobRank(1),), places=3, failing=1, least=least)
    decision = choose(situation, policy(Strategy.ELASTIC_TRAINING), {})
    assert decision.strategy is chosen
    assert ("2 nodes would be left, the job needs 3" in decision.reason) == (least == 3)


def test_who_starts_processes_anew_by_itself_is_left_to_it() -> None:
    """The job ends where all would be restarted. Strategies that keep the living processes are tried all the same."""
    elsewhere = replace(ALL, restart_all=False, allowed=(Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER))
    assert choose(Situation(lost=(JobRank(1),)), elsewhere, {}).strategy is Strategy.RECOVER_IN_PLACE
    refused = Situation(lost=(JobRank(1),), refusals=KeepingRefusals(no_newcomer="rank 0: PowerSGD"))
    decision = choose(refused, elsewhere, {})
    assert decision.strategy is Strategy.EXIT
    assert "who started the processes is to start them anew" in decision.reason
