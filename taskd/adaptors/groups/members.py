"""The ranks of the job that make up one world, and their order.

Rules:

1. A process keeps its rank of the job (its slot). In a world of fewer members its rank differs: it is the place of its
   slot among the members.
2. Groups that the script has made outlive a world. They are recorded in ranks of the job.
3. A device mesh keeps the ranks that it was made with, and the sub-meshes cut from them, in tensors of its own. It
   stays right in a world where all of its ranks keep their numbers, and in one of whole rows (`rows`).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.adaptors.groups.instances import instances
from taskd.adaptors.groups.rows import MeshRows
from taskd.errors import RebuildError
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, original_of
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan


@dataclass(frozen=True)
class Members:
    """The ranks of the job that one world has, in the order of that world's ranks."""

    slots: tuple[JobRank, ...]

    @classmethod
    def first(cls, size: int) -> "Members":
        """Return the members of a world in which nobody is absent."""
        return cls(tuple(map(JobRank, range(size))))

    @classmethod
    def of(cls, plan: WorldPlan) -> "Members":
        """Return the members of the plan's world. Raise `RebuildError` if the plan contradicts itself."""
        members = cls(plan.ranks)
        if len(members.slots) != plan.world_size or len(set(members.slots)) != plan.world_size:
            raise RebuildError(
                f"the plan of generation {plan.generation} has the members {plan.members}, expected "
                f"{plan.world_size} different ranks; the manager and this worker are of different versions"
            )
        return members

    def rank_of(self, slot: JobRank) -> WorldRank:
        """Return the rank in this world of the job's rank `slot`. Raise `RebuildError` if that is absent."""
        if slot not in self.slots:
            raise RebuildError(
                f"rank {slot} of the job is not in the new world of {self.slots}; it waits for one that has it"
            )
        return WorldRank(self.slots.index(slot))

    def present(self, slots: tuple[JobRank, ...]) -> tuple[WorldRank, ...]:
        """Return the ranks in this world of the present ones among `slots`, in the order of `slots`."""
        return tuple(WorldRank(self.slots.index(slot)) for slot in slots if slot in self.slots)


def refuse_meshes(members: Members, rows: MeshRows | None, slot: JobRank) -> None:
    """Check that every device mesh of this process is right in a world of these members; `slot` is its own rank.

    In a world of whole rows, `get_rank` of meshes returns the job's rank from now on.

    Raises:
        RebuildError: a mesh is not right.
    """
    module: Any = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return
    if rows is not None and rows.are_whole(members.slots) and hasattr(module, "get_rank"):
        if int(members.rank_of(slot)) != slot and original_of(module.get_rank) is None:
            module.get_rank = _number_in_meshes(module.get_rank, slot)  # for a mesh that is cut from another one later
        return
    kind: Any = module.DeviceMesh
    unchanged = {rank for rank, slot in enumerate(members.slots) if rank == slot}
    for mesh in instances(kind):
        ranks = [int(rank) for rank in mesh.mesh.flatten().tolist()]
        if not unchanged.issuperset(ranks):
            raise RebuildError(
                f"a device mesh has the ranks {ranks}, and the new world has the job's ranks {members.slots}, which "
                "are no whole replicas of the state; a mesh keeps its numbers: use process groups, or leave out "
                "elastic-training"
            )


def _number_in_meshes(in_group: Callable[..., int], slot: JobRank) -> Any:
    """Make meshes' `get_rank` return `slot` for the world: their numbers for the world are the job's ranks."""

    def get_rank(group: Any = None) -> Steps:
        return slot if group is None else (yield ORIGINAL)

    return around(in_group, get_rank)
