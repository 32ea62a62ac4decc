"""World that a process is started for, as variables of its environment.

Rules:

1. torchrun's own variables hold as long as the world is the one that torchrun formed. In a world with fewer or more
   nodes, a process that starts anew with all the others gets the size and its rank there.
2. A newcomer sets itself up as in the full world, with its rank of the job: it joins the others later.
3. The node of torchrun's store may be gone. A manager of several nodes names another store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.config import settings
from taskd.errors import RecoveryError
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Directive


@dataclass(frozen=True)
class Shape:
    """World of a process, with the variables that differ from torchrun's. `members` is empty for the whole job."""

    members: tuple[JobRank, ...] = ()
    places: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, directive: Directive, rank: JobRank, per_node: int, given: Mapping[str, str], *, joins: bool
    ) -> "Shape":
        """Return the shape for the job's rank `rank`, started by this directive. `given`: torchrun's environment."""
        everybody = tuple(map(JobRank, range(directive.node_count * per_node)))
        members = everybody if joins else tuple(order.rank for order in directive.ranks)
        if rank not in members:  # an earlier directive ordered it, and it has waited for a standby
            raise RecoveryError(f"found no rank {rank} in the world of {len(members)} ranks that is wanted by now")
        changed: dict[str, str] = {}
        if given.get("WORLD_SIZE") != str(len(members)) or members != everybody:
            own, size = WorldRank(members.index(rank)), len(members)
            changed |= dict.fromkeys(("RANK", "ROLE_RANK"), str(own))
            changed |= dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(size))
            changed |= {"GROUP_RANK": str(own // per_node), "GROUP_WORLD_SIZE": str(size // per_node)}
        if directive.store_host and not joins:
            changed |= {
                "MASTER_ADDR": directive.store_host,
                "MASTER_PORT": str(directive.store_port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            if directive.store_key:
                changed[settings.STORE_KEY.name] = directive.store_key
        return cls(() if members == everybody else members, directive.node_count, changed)
