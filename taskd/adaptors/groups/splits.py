"""Groups of `split_group`, which meshes use after `init_process_group(device_id=…)`: split off again in each world.

Rules:

1. torch's own function does the work and names the group. The parent, a handle, splits itself. The arguments that the
   parent receives there are recorded.
2. In a new world all members of the parent split it again, in the order of the script's calls. NCCL needs them all,
   also those that are in no part. (Run on gloo, under another device's name; never on a device.)
3. A newcomer's parent claims that it can be split, for as long as such a call takes.
4. A torch whose groups do not split themselves (before 2.8) is left alone: such a group is refused.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups import lone
from taskd.adaptors.groups.calls import GroupCall
from taskd.adaptors.groups.handle import GroupHandle, named
from taskd.adaptors.groups.members import Members
from taskd.adaptors.groups.tables import enter_split
from taskd.adaptors.groups.thread_names import Naming
from taskd.adaptors.seams.worker import SPLIT, TIMEOUT
from taskd.errors import RebuildError
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.wire.kinds import JobRank, WorldRank


@dataclass
class SplitCall(GroupCall):
    """A group that was split off another. A rank without `handle` is in no part, yet takes part in the split."""

    parent: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    """Options that the parent received, besides the ranks."""
    config: str = ""


class Splits:
    """Record of each `split_group` of this process from `install` on. One per process, as its world.

    Args:
        naming: gives a name to the group that is formed inside.
        known: receives each new split.
        members: returns those of the present world.
    """

    def __init__(
        self,
        naming: Naming,
        known: Callable[[SplitCall], None],
        members: Callable[[], Members],
    ) -> None:
        self._naming, self._known, self._members = naming, known, members
        self._asked: tuple[GroupHandle, list[int], dict[str, Any]] | None = None

    def install(self) -> None:
        """Replace torch's function, wherever it is called by name; do nothing in a torch of rule 4."""
        if not SPLIT.find().use:
            return
        torchs: Callable[..., Any] = c10d.split_group
        splits = self

        def noting(*_: Any, **__: Any) -> Steps:
            splits._asked = None
            with lone.splitting():
                return splits._note((yield ORIGINAL))

        def split(self: GroupHandle, ranks: Sequence[int], **options: Any) -> Any:
            return splits._ask(self, list(ranks), options)

        split_group = around(torchs, noting)
        GroupHandle.split_group = split  # type: ignore[assignment,method-assign]
        for module in (c10d, dist, device_mesh):
            if hasattr(module, "split_group"):
                vars(module)["split_group"] = split_group

    def repeat(self, call: SplitCall, members: Members, timeout_s: float) -> None:
        """Split it off again in a world of these members, whose other groups are formed.

        Raises:
            RebuildError: the script has destroyed the group that it was split off.
        """
        parent = named(call.parent)
        if parent is None:
            raise RebuildError(f"group {call.name} was split off group {call.parent}, which the script has destroyed")
        places = c10d._world.pg_group_ranks[parent]
        ranks = members.present(call.ranks)
        group = self._split(parent, [places[rank] for rank in ranks], call.asked, call.timeout, timeout_s)
        if call.handle is None or group is None:
            return
        group.bound_device_id = call.device
        enter_split(group, call.name, call.backend, call.config, ranks)
        c10d._set_pg_timeout(call.timeout, group)
        call.handle.swap(group)

    def _split(
        self, parent: GroupHandle, ranks: list[int], asked: dict[str, Any], timeout: timedelta, timeout_s: float
    ) -> Any:
        limit, inner = TIMEOUT.find().use.making(timeout, timeout_s), parent.inner()
        for device in inner._device_types:
            options = inner._get_backend(device).options
            if not options.global_ranks_in_group:  # torch has them for a process's first default group alone
                options.global_ranks_in_group = list(range(inner.size()))
        return inner.split_group(ranks, **{**_copied(asked), "timeout": limit})

    def _ask(self, parent: GroupHandle, ranks: list[int], options: dict[str, Any]) -> Any:
        """Split the parent for torch's function, and keep a copy of the arguments: splitting changes the options."""
        self._asked = (parent, ranks, _copied(options))
        with self._naming(str(options.get("group_name", ""))):
            return parent.inner().split_group(ranks, **options)

    def _note(self, group: Any) -> Any:
        """Record a group that torch has split off, and return its handle."""
        if self._asked is None:
            return group
        (parent, ranks, asked), self._asked = self._asked, None
        timeout = asked.get("timeout")
        handle = GroupHandle(group) if isinstance(group, dist.ProcessGroup) else None
        world, (backend, _) = c10d._world, c10d._world.pg_map[parent]
        call = SplitCall(
            size=len(ranks),
            ranks=self._slots(parent, ranks),
            backend=str(world.pg_map[handle][0] if handle is not None else backend),
            name=str(asked.get("group_name", "")),
            options=None,
            timeout=timeout if isinstance(timeout, timedelta) else c10d.default_pg_timeout,
            tag=None,
            device=parent.bound_device_id,
            desc=asked.get("group_desc"),
            handle=handle,
            parent=str(parent.group_name),
            asked=asked,
            config=str(world.pg_backend_config[handle]) if handle is not None else "",
        )
        self._known(call)
        return handle if handle is not None else group

    def _slots(self, parent: GroupHandle, ranks: Iterable[int]) -> tuple[JobRank, ...]:
        of_world = {place: rank for rank, place in c10d._world.pg_group_ranks[parent].items()}
        slots = self._members().slots
        return tuple(slots[WorldRank(of_world[place])] for place in ranks)


def _copied(options: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) if name == "opts" else value for name, value in options.items()}
