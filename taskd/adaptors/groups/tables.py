"""torch's tables of process groups: the entries of each group, and how a group is entered and removed.

They are the same in torch 2.6 to 2.15, whatever names torch's own functions for them have.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as native
from torch.distributed import distributed_c10d as c10d


def default_store() -> dist.Store:
    """Return the store of the default group.

    Raises:
        ValueError: there is no default group.
    """
    store: dist.Store = c10d._world.pg_map[c10d._get_default_group()][1]
    return store


def enter(group: dist.ProcessGroup, name: str, backend: str, tag: str | None, store: Any) -> None:
    """Enter a group that torch has not made itself, under its name in the C++ registry too.

    `tag` is the user's tag, None or "" for none.
    """
    world = c10d._world
    world.pg_map[group] = (c10d.Backend(backend), store)
    world.pg_names[group] = name  # type: ignore[assignment]
    world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(backend)))
    native._register_process_group(name, group)  # type: ignore[arg-type]
    if not tag:
        world.tags_to_pg.setdefault("", []).append(group)
    full = f"user:{tag}" if tag else f"ptd:{name}"
    world.tags_to_pg.setdefault(full, []).append(group)
    world.pg_to_tag[group] = full


def enter_split(group: dist.ProcessGroup, name: str, backend: str, config: str, ranks: Sequence[int]) -> None:
    """Enter a group that was split off another one, as torch's `split_group` does: under no tag of a user."""
    world = c10d._world
    world.pg_map[group] = (c10d.Backend(backend), group.get_group_store())
    world.pg_names[group] = name  # type: ignore[assignment]
    world.pg_backend_config[group] = config
    native._register_process_group(name, group)  # type: ignore[arg-type]
    world.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)
    world.pg_to_tag[group] = f"ptd:{name}"
    enter_ranks(group, ranks)


def enter_ranks(group: dist.ProcessGroup, ranks: Sequence[int]) -> None:
    """Enter the ranks of the world that a group has, in the group's own order."""
    c10d._world.pg_group_ranks[group] = {member: at for at, member in enumerate(ranks)}


def enter_beside(handle: dist.ProcessGroup, inner: dist.ProcessGroup) -> None:
    """Enter `handle` with all the entries of `inner`, which torch has made; not in the C++ registry.

    A search for the group by its tag then finds the handle.
    """
    world = c10d._world
    world.pg_map[handle] = world.pg_map[inner]
    world.pg_names[handle] = world.pg_names[inner]
    world.pg_backend_config[handle] = world.pg_backend_config[inner]
    world.pg_to_tag[handle] = world.pg_to_tag[inner]
    for tag in (world.pg_to_tag[inner], ""):
        tagged = world.tags_to_pg.get(tag, [])
        if inner in tagged:
            tagged[tagged.index(inner)] = handle
    ranks = world.pg_group_ranks.get(inner)
    if ranks is not None:
        world.pg_group_ranks[handle] = ranks


def clear() -> None:
    """Remove all groups from the tables. The groups themselves are left as they are."""
    for group in list(c10d._world.pg_map):
        strike(group)
    c10d._update_default_pg(None)


def strike(group: dist.ProcessGroup, *, by_name: bool = True) -> None:
    """Remove one group from the tables; with `by_name` from the C++ registry too.

    `by_name` is False if another group has its name there.
    """
    world = c10d._world
    name = world.pg_names.pop(group, None)
    for table in (world.pg_map, world.pg_group_ranks, world.pg_backend_config, world.pg_coalesce_state):
        table.pop(group, None)
    tag = world.pg_to_tag.pop(group, None)
    for key in (tag, ""):
        if key is not None and group in world.tags_to_pg.get(key, []):
            world.tags_to_pg[key].remove(group)
    if name is not None and by_name:
        native._unregister_process_group(name)
