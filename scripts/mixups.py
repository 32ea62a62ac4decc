"""Mix-ups of ranks and places, for mypy to refuse: `scripts/check-kinds.py` sees that it does. Nobody runs them."""

from taskd.core.membership.places import Nodes
from taskd.core.recovery.events import Lost
from taskd.core.recovery.ranks import Restore
from taskd.core.recovery.world import RankView, World
from taskd.wire.kinds import JobRank, LocalRank, NodeRank, WorldRank
from taskd.wire.messages import Place, RankOrder, Transfer, WorldPlan


def as_job_rank(world: World, world_rank: WorldRank, local_rank: LocalRank, node_rank: NodeRank) -> RankView:
    """What is none, where a rank of the job is wanted."""
    world.replace(world_rank, 0.0, joins=False)  # must fail
    RankOrder(rank=local_rank, incarnation=0)  # must fail
    RankOrder(rank=3, incarnation=0)  # must fail
    Lost(node_rank)  # must fail
    return world.ranks[node_rank]  # must fail


def as_place(nodes: Nodes, rank: JobRank) -> str:
    """A rank of the job where a place is wanted."""
    nodes.vacate(rank)  # must fail
    Place(node_rank=rank, agent_id="")  # must fail
    return nodes.holders[rank]  # must fail


def successor(rank: JobRank) -> JobRank:
    """A number that was calculated is of no kind until somebody says which."""
    return rank + 1  # must fail


def in_the_world(restore: Restore, rank: JobRank) -> WorldPlan:
    """Ranks of the job where those of the present world are wanted."""
    Transfer(donor=rank, receivers=())  # must fail
    Transfer(donor=WorldRank(0), receivers=(rank,))  # must fail
    return WorldPlan(
        generation=1,
        world_size=2,
        store_host="",
        store_port=0,
        target_step=restore.target_step,
        adopt=restore.adopt,  # must fail
        transfers=restore.transfers,  # must fail
        timeout_s=1.0,
    )


def of_every_kind(world: World, nodes: Nodes, rank: JobRank, place: NodeRank) -> RankView:
    """What is right passes."""
    world.replace(rank, 0.0, joins=False)
    nodes.vacate(place)
    RankOrder(rank=rank, incarnation=0)
    Transfer(donor=WorldRank(0), receivers=(WorldRank(1),))
    Lost(JobRank(rank + 1))
    return world.ranks[rank]
