"""Replicas that no longer hold the same state, and the consequences."""

from typing import Any

import pytest
from msgspec.structs import replace

from taskd.core.diagnosis.findings import Kind
from taskd.core.policy import Strategy
from taskd.core.recovery import Note, Phase
from taskd.core.recovery.comparing import StateComparison, StateSplit
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, Order, Stage
from taskd.wire.state import StateCopy, StateDigest
from tests.core.driver import Job

IN_PLACE = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
ODD = 2


def compared(*steps: str, sets: str = "aaaa") -> tuple[StateComparison, list[StateSplit], list[tuple[str, str]]]:
    """Compare digests. Each text: a letter per rank for its weights, then a slash and its optimizers; `-`: unread."""
    comparison = StateComparison()
    comparison.begin(0)
    keys: dict[JobRank, str | None] = {JobRank(rank): key for rank, key in enumerate(sets)}
    splits: list[StateSplit] = []
    unequal: list[tuple[str, str]] = []
    for step, text in enumerate(steps, start=1):
        weights, _, optimizer = text.partition("/")
        for rank, value in enumerate(weights):
            of = optimizer[rank] if optimizer else "o"
            digest = StateDigest(step=step, weights=value.strip("-"), optimizer=of.strip("-"))
            comparison.hear(JobRank(rank), [digest])
        assert comparison.complete(len(keys))
        found = comparison.compare(keys)
        splits += found.splits
        unequal += found.unequal
    return comparison, splits, unequal


@pytest.mark.parametrize(
    ("step", "groups", "odd"),
    [
        ("xxyx", ((0, 1, 3), (2,)), (2,)),
        ("yxyx", ((0, 2), (1, 3)), ()),
        ("wxyx", ((1, 3), (0,), (2,)), ()),  # two of four are no majority
        ("wxyz", ((0,), (1,), (2,), (3,)), ()),
        ("-xyx", ((1, 3), (2,)), (2,)),
    ],
)
def test_most_of_a_set_tell_who_is_odd(step: str, groups: Any, odd: Any) -> None:
    comparison, splits, _ = compared("xxxx", step)
    assert splits == [StateSplit(2, "a", groups, ("weights",), equal_at=1)]
    assert splits[0].odd == odd
    assert comparison.verified == 1


def test_of_two_nobody_can_say_who_is_right() -> None:
    _, splits, _ = compared("xx", "xy", sets="aa")
    assert (splits[0].ranks, splits[0].odd) == ((0, 1), ())


def test_each_set_is_compared_by_itself() -> None:
    comparison, splits, _ = compared("xyxyxy", "xyxyxz", sets="ababab")
    assert [(split.key, split.odd) for split in splits] == [("b", (5,))]
    assert comparison.verified == 1
    comparison, splits, _ = compared("xyzw", sets="abcd")
    assert (comparison.verified, splits) == (1, [])


def test_an_optimizer_of_each_ranks_own_is_the_scripts_doing_and_hides_nothing() -> None:
    comparison, splits, unequal = compared("xxxx/abcd", "xxxx/efgh", "xxyx/ijkl")
    assert unequal == [("a", "optimizer")]
    assert [(split.parts, split.odd) for split in splits] == [(("weights",), (2,))]
    assert comparison.verified == 2


def test_what_was_never_equal_is_odd_if_most_are_equal() -> None:
    _, splits, unequal = compared("xxyx")
    assert (splits[0].odd, splits[0].equal_at, unequal) == ((2,), -1, [])


def test_a_difference_is_told_once_and_again_when_it_comes_again() -> None:
    _, splits, _ = compared("xxxx", "xxyx", "aaba", "xxyz", "xxxx", "xxyx")
    assert [(split.step, split.odd) for split in splits] == [(2, (2,)), (4, ()), (6, (2,))]


def test_a_step_waits_for_all_ranks_and_another_world_forgets_it() -> None:
    comparison = StateComparison()
    comparison.begin(0)
    one, other = (StateDigest(step=3, weights=value, optimizer="") for value in "xy")
    comparison.hear(JobRank(0), [one])
    assert not comparison.complete(2)
    comparison.begin(1)
    comparison.hear(JobRank(1), [other])
    assert not comparison.complete(2)


def test_ranks_that_are_never_heard_together_cost_no_memory() -> None:
    comparison = StateComparison()
    for step in range(1000):
        comparison.hear(JobRank(0), [StateDigest(step=step, weights="x", optimizer="x")])
    assert len(comparison._heard) <= 64


# ---- consequences


def training(*, ranks: int = 4, on: bool = True, copies: bool = False, **more: Any) -> Job:
    job = Job(1, ranks, more.pop("allowed", IN_PLACE), replace_corrupted=on, **more)
    job.copies = {} if copies else None
    job.up()
    digests(job, 10, {})
    return job


def digests(job: Job, step: int, values: dict[int, str]) -> None:
    """Report the digests of this step for all ranks: "x", or the given values."""
    for rank in sorted(job.core.world.ranks):
        known = StateDigest(step=step, weights=values.get(rank, "x"), optimizer="o")
        job.statuses[rank] = replace(job.statuses[rank], digests=(known,), step=step, at_s=job.now_s + step)
    job.send(0)


def test_the_odd_rank_is_named_and_by_default_only_reported() -> None:
    job = training(on=False)
    digests(job, 20, {ODD: "y"})
    assert job.phase is Phase.RUNNING
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits, told.reported) == (Kind.CORRUPTED, (ODD,), True)
    assert (
        "rank 2 (node 0) holds another state than ranks 0, 1 and 3 after step 20 (parameters)"
        in told.diagnosis.sentence
    )
    assert "after step 10 they were equal" in told.diagnosis.sentence
    digests(job, 30, {ODD: "z"})
    assert len(job.diagnoses) == 1, "told once"


def test_the_odd_rank_is_replaced_and_gives_nothing_away() -> None:
    job = training()
    digests(job, 20, {0: "y"})
    assert job.phase is Phase.PAUSING
    assert job.incarnations == [1, 0, 0, 0]
    for rank in (1, 2, 3):
        job.say(rank, Stage.PAUSED, step=22)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    plan = job.directive.plan
    assert plan is not None
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(1, (0,))]
    for stage in (Stage.JOINED, Stage.RESTORED):
        job.all(stage, step=22)
    job.all(Stage.COMMITTED, step=23)
    (success,) = job.successes
    assert success.record.causes[JobRank(0)].text == "silent data corruption"
    assert success.record.diagnosis is not None
    assert success.record.diagnosis.culprits == (0,)
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 1


def test_of_two_ranks_nobody_is_replaced_without_copies() -> None:
    job = training(ranks=2)
    digests(job, 20, {1: "y"})
    assert job.phase is Phase.RUNNING
    (told,) = job.diagnoses
    assert (told.diagnosis.culprits, [fact.rank for fact in told.diagnosis.facts]) == ((), [0, 1])
    assert "rank 0 (node 0) and rank 1 (node 0) hold different states" in told.diagnosis.sentence
    assert "which of them is right cannot be told" in told.diagnosis.sentence


@pytest.mark.parametrize("ranks", [2, 4])
def test_with_copies_all_go_back_to_a_step_at_which_all_were_equal(ranks: int) -> None:
    """The newer copies, and every living state, may be affected by the corruption."""
    job = training(ranks=ranks, copies=True)
    digests(job, 20, {1: "y"})
    assert job.phase is Phase.PAUSING
    job.copies = {rank: tuple(StateCopy(of=JobRank(rank), step=step) for step in (8, 16)) for rank in range(ranks)}
    for rank in range(ranks):
        empty = ranks > 2 and rank == 1
        job.say(rank, Stage.PAUSED, step=-1 if empty else 22, condition=Condition.EMPTY if empty else Condition.CLEAN)
    plan = job.directive.plan
    assert plan is not None
    assert (plan.target_step, plan.copied) == (8, 8)
    assert [(load.receiver, load.holder, load.of) for load in plan.loads] == [
        (rank, rank, rank) for rank in range(ranks)
    ]
    assert plan.transfers == ()


def test_if_those_copies_are_gone_what_has_come_of_it_stays_and_is_told() -> None:
    job = training(copies=True)
    digests(job, 20, {1: "y"})
    for rank in range(4):
        job.say(
            rank,
            Stage.PAUSED,
            step=-1 if rank == 1 else 22,
            condition=Condition.EMPTY if rank == 1 else Condition.CLEAN,
        )
    plan = job.directive.plan
    assert plan is not None
    assert (plan.target_step, plan.loads, len(plan.transfers)) == (22, (), 1)
    assert any("no copies of a step up to 10 are left" in note.text for note in job.did(Note))


def test_what_was_never_equal_replaces_nobody() -> None:
    job = Job(1, 4, IN_PLACE, replace_corrupted=True).up()
    digests(job, 10, {ODD: "y"})
    assert job.phase is Phase.RUNNING
    assert "never seen to be equal" in job.diagnoses[0].diagnosis.sentence


def test_without_a_restart_left_it_is_only_reported() -> None:
    job = training(max_restarts=0)
    digests(job, 20, {ODD: "y"})
    assert (job.phase, job.order) == (Phase.RUNNING, Order.RUN)
    assert "no restart is left" in job.diagnoses[0].diagnosis.sentence


def test_digests_of_another_world_or_process_count_for_nothing() -> None:
    job = training()
    digests(job, 20, {})
    job.kill(ODD)
    job.paused(newcomers=(ODD,)).recovered()
    old = replace(job.statuses[0], generation=0, digests=(StateDigest(step=30, weights="y", optimizer="o"),))
    job.statuses[0] = replace(old, at_s=job.now_s + 50)
    job.send(0)
    for rank in (1, 2, 3):
        known = (StateDigest(step=30, weights="x", optimizer="o"),)
        job.statuses[rank] = replace(job.statuses[rank], digests=known, at_s=job.now_s + 60)
    job.send(0)
    assert (job.phase, job.diagnoses) == (Phase.RUNNING, job.diagnoses[:0])


def test_the_last_digests_come_with_the_end_and_another_training_function_begins_anew() -> None:
    job = training()
    for rank in range(4):
        value = "y" if rank == ODD else "x"
        job.statuses[rank] = replace(
            job.statuses[rank],
            stage=Stage.FINISHED,
            digests=(StateDigest(step=20, weights=value, optimizer="o"),),
            at_s=job.now_s + 70,
        )
        if rank < 3:
            job.core.hear(job.status(0), job.now_s)
    job.send(0)
    assert (job.phase, [told.diagnosis.culprits for told in job.diagnoses]) == (Phase.PAUSING, [(ODD,)])
    job = training()
    job.all(Stage.FINISHED, step=20)
    assert job.at(Phase.FINISHING)
    job.all(Stage.TRAINING, step=0)
    assert job.at(Phase.RUNNING)
    digests(job, 1, {})
    assert job.core.job.comparison.compared == 1


def test_a_rank_that_reports_nothing_is_told_once() -> None:
    job = training()
    for step in range(11, 200):
        job.statuses[ODD] = replace(job.statuses[ODD], digests=())
        for rank in (0, 1, 3):
            known = StateDigest(step=step, weights="x", optimizer="o")
            job.statuses[rank] = replace(job.statuses[rank], digests=(known,), at_s=job.now_s + step)
        job.send(0)
    (told,) = (note.text for note in job.did(Note) if "verify" in note.text)
    assert told.startswith("rank 2 reported no digests")


def test_no_replica_is_told_once() -> None:
    job = Job(1, 2, IN_PLACE)
    job.replicas = {0: "shard 0", 1: "shard 1"}
    job.up()
    for step in (10, 20):
        digests(job, step, {1: "y"})
    assert len([note for note in job.did(Note) if "no rank has a replica" in note.text]) == 1
    assert job.diagnoses == []
