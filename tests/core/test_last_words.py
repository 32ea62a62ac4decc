"""A dying process reports its fault: a bug ends the job at once, a bad node is left at once."""

from msgspec.structs import replace

from taskd.core.agent import Node
from taskd.core.recovery import JobEnded, Phase
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import RankStatus, Stage
from tests.core.driver import Job

R0 = JobRank(0)


def die(job: Job, rank: int, kind: str, cause: str = "exit code 1: NameError: name 'x' is not defined") -> None:
    """Let the rank's process end after its last report."""
    job.statuses[rank] = replace(job.statuses[rank], stage=Stage.DEAD, step=5, cause=cause, kind=kind)
    job.send(rank // job.per_node)


def test_a_bug_of_the_job_ends_it_at_once() -> None:
    job = Job().up()
    die(job, 1, "fatal")
    assert job.at(Phase.STOPPED)
    stopped = [action for action in job.actions if isinstance(action, JobEnded)]
    assert stopped[0].exit_code == 1
    assert "rank 1: exit code 1: NameError" in stopped[0].reason
    assert "a bug of the job" in stopped[0].reason


def test_so_it_does_during_a_recovery() -> None:
    job = Job().up()
    job.kill(0)
    die(job, 1, "fatal")
    assert job.at(Phase.STOPPED)


def test_a_process_that_must_be_replaced_is_replaced_in_place() -> None:
    job = Job().up()
    die(job, 1, "process", "exit code 1: RuntimeError: device-side assert")
    assert job.at(Phase.PAUSING)
    assert job.core.record is not None
    assert job.core.record.decision.strategy.value == "recover-in-place"


def test_words_belong_to_one_process() -> None:
    node = Node()
    node.started(RankStatus(rank=R0, incarnation=0, generation=0, stage=Stage.STARTING, pid=7))
    node.last_words(R0, "OSError: no", "node")
    node.ended(R0, status=1, cause="exit code 1", at_s=1.0)
    assert (node.slots[R0].status.raised, node.slots[R0].status.kind) == (True, "node")
    node.started(RankStatus(rank=R0, incarnation=1, generation=0, stage=Stage.STARTING, pid=8))
    node.ended(R0, status=-9, cause="signal 9 (SIGKILL)", at_s=2.0)
    assert (node.slots[R0].status.raised, node.slots[R0].status.kind) == (False, "")


def test_a_node_at_fault_is_left_at_once_if_another_waits() -> None:
    job = Job(nodes=2, per_node=1).up()
    job.spare()
    die(job, 1, "node", "exit code 1: RuntimeError: Xid 79")
    assert job.core.record is not None
    assert job.core.record.decision.strategy.value == "recover"
    assert job.core.world.nodes.holders[NodeRank(1)] == "spare"


def test_without_another_node_it_is_tried_where_it_is() -> None:
    job = Job(nodes=2, per_node=1).up()
    die(job, 1, "node", "exit code 1: RuntimeError: Xid 79")
    assert job.core.record is not None
    assert job.core.record.decision.strategy.value == "recover-in-place"
