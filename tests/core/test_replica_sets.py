"""Jobs whose ranks hold different parts of the state: every decision is made for each replica set."""

from msgspec.structs import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import Phase
from taskd.core.recovery.world import RankView
from taskd.core.replica_sets import Replica, keys_of
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Ledger, Order, RankStatus, Stage
from taskd.wire.state import MeshRow
from tests.core.driver import Job

IN_PLACE = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
SHRINKS = (Strategy.ELASTIC_TRAINING, Strategy.EXIT)


def sharded(nodes: int = 1, *, per_node: int = 4, allowed: tuple[Strategy, ...] = IN_PLACE, sets: int = 2) -> Job:
    """Return a job in which rank r holds the shard r % sets."""
    job = Job(nodes, per_node, allowed)
    job.replicas = {rank: f"shard {rank % sets}" for rank in range(nodes * per_node)}
    return job.up()


def reason(job: Job) -> str:
    assert job.core.record is not None
    return job.core.record.decision.reason


def test_a_rank_receives_from_its_own_set_alone() -> None:
    job = sharded()
    job.kill(3)
    job.paused(newcomers=(3,))
    plan = job.directive.plan
    assert plan is not None
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(1, (3,))]


def test_two_ranks_of_different_sets_have_a_donor_each() -> None:
    job = sharded()
    job.kill(0)
    job.kill(3)
    job.paused(newcomers=(0, 3))
    plan = job.directive.plan
    assert plan is not None
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(2, (0,)), (1, (3,))]


def test_each_set_comes_to_the_same_step_in_its_own_way() -> None:
    """One rank of shard 0 has committed step 6. No rank of shard 1 has, and rank 1 has stepped."""
    job = sharded()
    job.kill(3)
    job.say(0, Stage.PAUSED, step=6)
    job.say(1, Stage.PAUSED, step=5, condition=Condition.STEPPED)
    job.say(2, Stage.PAUSED, step=5)
    job.say(3, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    plan = job.directive.plan
    assert plan is not None
    assert (plan.target_step, plan.adopt) == (6, (1,))
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(0, (2,)), (1, (3,))]


def test_a_donor_whose_state_arrives_otherwise_gives_nothing_away_any_more() -> None:
    job = sharded(per_node=6)
    job.kill(3)
    job.paused(newcomers=(3,))
    job.all(Stage.JOINED)
    while job.generation < 2 or job.order is not Order.JOIN:  # the world fails, and the next one is planned
        job.say(3, Stage.PAUSED, condition=Condition.TORN, cause="DistrustError: …", distrusts=JobRank(1))
        for rank in (0, 1, 2, 4, 5):
            job.say(rank, Stage.PAUSED)
        job.wait(1.0)
    plan = job.directive.plan
    assert plan is not None
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(5, (1, 3))]


def test_a_set_that_is_lost_as_a_whole_has_all_start_anew() -> None:
    job = sharded()
    job.kill(1)
    job.kill(3)
    assert (job.phase, job.order) == (Phase.RESTARTING, Order.RUN)
    assert "no rank of replica set 'shard 1' is left to give its state" in reason(job)


def test_a_set_whose_state_is_torn_has_all_start_anew() -> None:
    job = sharded()
    job.kill(3)
    job.say(1, Stage.PAUSED, condition=Condition.TORN)
    job.say(0, Stage.PAUSED)
    job.say(2, Stage.PAUSED)
    job.say(3, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    assert job.phase is Phase.RESTARTING
    assert "no step is held by a rank of every replica set" in reason(job)


def test_nobody_goes_on_without_a_set() -> None:
    """Each node holds a shard of its own: the remaining nodes do not have the whole state."""
    job = sharded(3, per_node=1, allowed=SHRINKS, sets=3)
    job.silence(2)
    assert (job.phase, job.order) == (Phase.RESTARTING, Order.RUN)
    assert "no rank of replica set 'shard 2' is left to give its state" in reason(job)


def on_a_mesh(nodes: int, per_node: int, size: int, *, sets: int = 2) -> Job:
    """Return a job on a mesh: `size` consecutive ranks are a row."""
    job = Job(nodes, per_node, SHRINKS)
    ranks = range(nodes * per_node)
    job.replicas = {rank: f"shard {rank % sets}" for rank in ranks}
    job.rows = {rank: MeshRow(name=f"dp={rank // size}", size=size) for rank in ranks}
    return job.up()


def test_others_go_on_if_they_are_whole_rows() -> None:
    job = on_a_mesh(3, per_node=4, size=2)
    job.silence(2)
    assert (job.phase, job.order) == (Phase.PAUSING, Order.PAUSE)
    job.paused(newcomers=())
    plan = job.directive.plan
    assert plan is not None
    assert plan.ranks == tuple(range(8))


def why_all_start_anew(job: Job, lost: int) -> str:
    job.silence(lost)
    assert (job.phase, job.order) == (Phase.RESTARTING, Order.RUN)
    return reason(job)


def test_nobody_goes_on_with_half_of_a_row() -> None:
    job = on_a_mesh(4, per_node=1, size=2)
    assert "of the replica dp=1 of the state, 2 ranks, only rank 2 would be left" in why_all_start_anew(job, 3)


def test_a_row_on_several_nodes_could_come_back_by_halves() -> None:
    job = on_a_mesh(3, per_node=2, size=2)
    job.rows |= dict.fromkeys(range(4), MeshRow(name="dp=0", size=4))
    job.all(Stage.TRAINING)
    assert "the replica dp=0 of the state lies on several nodes (0, 1), which come and go" in why_all_start_anew(job, 2)


def test_a_mesh_that_does_not_say_who_works_together() -> None:
    job = on_a_mesh(3, per_node=2, size=2)
    job.rows = dict.fromkeys(range(6), MeshRow(refusal="no mesh covers the job"))
    job.all(Stage.TRAINING)
    assert "rank 0: no mesh covers the job" in why_all_start_anew(job, 2)


def test_rows_that_do_not_hold_all_parts() -> None:
    """Each rank reports that it is a whole row, yet it holds a different part than others."""
    job = on_a_mesh(4, per_node=1, size=1)
    assert "the ranks of the replica dp=0 of the state do not hold all parts of it" in why_all_start_anew(job, 3)


def test_without_a_mesh_nobody_knows_who_works_together() -> None:
    job = sharded(3, per_node=2, allowed=SHRINKS)
    assert "no mesh says which of them work together" in why_all_start_anew(job, 2)


def test_a_new_manager_that_does_not_know_what_a_lost_node_held_does_not_go_on_without_it() -> None:
    """Node 0 holds the same shard as node 2, but no agent can report this to the new manager any more."""
    job = Job(3, 1, SHRINKS, sequence=1000)
    ledger = Ledger(term=7, places=tuple(map(NodeRank, (0, 1, 2))))
    for rank in (0, 1):
        job.statuses[rank] = RankStatus(
            rank=JobRank(rank), incarnation=0, generation=2, stage=Stage.TRAINING, step=5, replicas=f"shard {rank % 2}"
        )
    for _ in range(8):
        job.now_s += 2.0
        for node in (0, 1):
            job.hear(replace(job.status(node), generation=2, ledger=ledger))
        job.core.tick(job.now_s)
    assert (job.phase, job.core.world.places) == (Phase.RESTARTING, (0, 1))
    assert "which replica set rank 2 was of is not known" in reason(job)


def test_a_node_is_not_given_up_with_a_living_rank_that_alone_holds_a_shard() -> None:
    """Rank 0 has died, and rank 1 of the same node lives; elastic training would end it."""
    job = Job(2, 2, SHRINKS)
    job.replicas = {0: "shared", 1: "of rank 1", 2: "shared", 3: "shared"}
    job.up().kill(0)
    assert job.phase is Phase.RESTARTING
    assert "no rank of replica set 'of rank 1' is left on another node to give its state" in reason(job)


def test_a_node_that_alone_holds_a_shard_is_not_drained() -> None:
    """A drain would end the only process that holds the shard."""
    job = sharded(3, per_node=1, allowed=(Strategy.RECOVER, Strategy.EXIT))
    job.spare()
    refusal, actions = job.core.move_from("1", job.now_s)
    assert "no rank of replica set 'shard 1' is left on another node to give its state" in refusal
    assert (actions, job.phase) == ([], Phase.RUNNING)
    assert job.core.move_from("2", job.now_s)[0] == ""


A, B, C = JobRank(0), JobRank(1), JobRank(2)


def test_ranks_of_different_names_hold_different_parts() -> None:
    assert keys_of({A: Replica("shard=0"), B: Replica("shard=1"), C: Replica("shard=0")}) == {
        A: "shard=0",
        B: "shard=1",
        C: "shard=0",
    }


def test_ranks_of_one_name_are_told_apart_by_the_newest_digests_that_all_have() -> None:
    same = {A: Replica("", ("a", "b")), B: Replica("", ("a", "b")), C: Replica()}
    assert keys_of(same) == {A: "", B: "", C: ""}
    made_equal = {A: Replica("", ("a", "x")), B: Replica("", ("b", "x"))}
    assert keys_of(made_equal) == {A: "", B: ""}  # their set-ups differ, and a broadcast came before the first step
    stages = {A: Replica("", ("a", "x")), B: Replica("", ("a", "y")), C: Replica("", ("a", "x"))}
    assert keys_of(stages) == {A: "weights x", B: "weights y", C: "weights x"}
    early = {A: Replica("", ("a", "x")), B: Replica("", ("a",))}
    assert keys_of(early) == {A: "", B: ""}  # one has committed the first step, the other has not yet
    early_stages = {A: Replica("", ("a", "x")), B: Replica("", ("b",))}
    assert keys_of(early_stages) == {A: "weights a", B: "weights b"}


def test_a_rank_of_which_nothing_was_heard_has_no_key() -> None:
    assert keys_of({A: None, B: Replica("stage=0")}) == {A: None, B: "stage=0"}


def test_a_new_process_is_of_the_set_of_the_one_before_it() -> None:
    view = RankView(NodeRank(0))
    view.note(status(weights=("a", "b")))
    view.note(status(weights=(), stage=Stage.PAUSED))
    assert view.replicas == Replica("shard=0", ("a", "b"))


def status(weights: tuple[str, ...], stage: Stage = Stage.TRAINING) -> RankStatus:
    return RankStatus(rank=A, incarnation=0, generation=0, stage=stage, replicas="shard=0", weights=weights)
