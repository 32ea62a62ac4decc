"""Environment of processes in a world of another size."""

from taskd.config.worker import WorkerConfig, as_ranges
from taskd.runtime.agent.shape import Shape
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Directive, Order, RankOrder

GIVEN = {"WORLD_SIZE": "6", "RANK": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def directive(*ranks: int, store_host: str = "") -> Directive:
    orders = tuple(RankOrder(rank=JobRank(rank), incarnation=1) for rank in ranks)
    return Directive(
        job_id="job", sequence=1, generation=1, order=Order.RUN, ranks=orders, node_count=3,
        store_host=store_host, store_port=7, store_key="key",
    )  # fmt: skip


def test_in_the_world_that_torchrun_has_formed_nothing_changes() -> None:
    shape = Shape.of(directive(*range(6)), JobRank(4), 2, GIVEN, joins=False)
    assert (shape.members, shape.places, dict(shape.environment)) == ((), 3, {})


def test_a_smaller_world_that_starts_anew_is_told_its_ranks() -> None:
    shape = Shape.of(directive(0, 1, 4, 5, store_host="node2"), JobRank(4), 2, GIVEN, joins=False)
    assert shape.members == (0, 1, 4, 5)
    assert dict(shape.environment) == {
        "RANK": "2",
        "ROLE_RANK": "2",
        "WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "node2",
        "MASTER_PORT": "7",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TASKD_STORE_KEY": "key",
    }


def test_a_newcomer_sets_itself_up_as_in_the_full_world() -> None:
    started_small = {**GIVEN, "WORLD_SIZE": "4", "RANK": "2"}
    shape = Shape.of(directive(0, 1, 4, 5, store_host="node2"), JobRank(4), 2, started_small, joins=True)
    assert shape.members == ()
    assert (shape.environment["RANK"], shape.environment["WORLD_SIZE"]) == ("4", "6")
    assert "MASTER_ADDR" not in shape.environment


def test_the_worker_reads_what_the_agent_wrote() -> None:
    env = {
        "TASKD_AGENT_SOCKET": "/s", "TASKD_AGENT_PID": "1", "RANK": "2", "LOCAL_WORLD_SIZE": "2",
        "TASKD_MEMBERS": as_ranges(tuple(map(JobRank, (0, 1, 4, 5)))), "TASKD_PLACES": "3",
    }  # fmt: skip
    config = WorkerConfig.from_environment(env)
    assert config is not None
    assert env["TASKD_MEMBERS"] == "0-1,4-5"
    assert (config.rank, config.members, config.replicas) == (4, (0, 1, 4, 5), 6)
