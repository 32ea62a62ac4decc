"""`GroupHandle`: the object that `init_process_group` and `new_group` hand out. References to it survive a rebuild.

Rules:

1. A handle never communicates. Each call goes to the inner group, which `swap` replaces in each generation.
2. Functional collectives find groups by name in the C++ registry, where the *inner* group is entered. So they pay
   nothing for the handle. Python code holds the handle, and a device mesh finds it by name (`named`).
3. Both are in torch's tables, since `torch.distributed` functions look up whichever they were given. A search by tag
   finds the handle.
"""

from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.tables import enter_beside, strike
from taskd.adaptors.groups.uncompiled import leave_methods_uncompiled, leave_uncompiled
from taskd.runtime.worker.frameless import sent_on

_OWN = frozenset({"_pybind11_conduit_v1_", "_set_group_name", "_set_group_desc", "abort", "shutdown"})


_handles: "WeakValueDictionary[str, GroupHandle]" = WeakValueDictionary()


class GroupHandle(dist.ProcessGroup):
    """A process group whose members are reached through the newest generation's group of the same name."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # not in the stubs, but for subclasses
        self._name, self._desc = inner.group_name, inner.group_desc
        self._inner: dist.ProcessGroup | None = None
        self._bound: Any = None
        _handles[str(self._name)] = self
        self.swap(inner)

    def inner(self) -> dist.ProcessGroup:
        """Return the group of this generation; raise RuntimeError between two generations."""
        if self._inner is None:
            raise RuntimeError(
                f"process group {self._name!r} is between two generations: it was used while its world is being "
                "rebuilt; use it again after the recovery"
            )
        return self._inner

    @property
    def present(self) -> dist.ProcessGroup | None:
        """Return the group of this generation; None between two generations."""
        return self._inner

    def swap(self, inner: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """Put `inner` in place of the present group and return the old one, for the caller to dispose of."""
        old, self._inner = self._inner, inner
        if old is not None:
            strike(self, by_name=False)
        if inner is not None:
            if self._bound is not None:  # set by the script itself
                inner.bound_device_id = self._bound
            enter_beside(self, inner)
        return old

    def shutdown(self) -> None:
        """Shut the inner group down and remove it from torch's tables (torch removes the handle itself)."""
        inner, self._inner = self._inner, None
        if inner is not None and inner in c10d._world.pg_map:
            inner.shutdown()
            strike(inner)

    def abort(self) -> None:
        """Abort the inner group and remove it from torch's tables."""
        inner, self._inner = self._inner, None
        if inner is not None and inner in c10d._world.pg_map:
            inner.abort()
            strike(inner)

    def lives(self) -> bool:
        """Return whether the script has not destroyed the group.

        If the script has destroyed it, the inner group is removed here: torch 2.6 does not report the destruction.
        """
        if self in c10d._world.pg_map:
            return True
        inner, self._inner = self._inner, None
        if inner is not None and inner in c10d._world.pg_map:
            strike(inner)
        return False

    # torch reads the name of a C++ group from its backends, and a handle has no backends: hence these two.

    @property
    def group_name(self) -> Any:  # a NewType of str in some versions
        """Name of the group, the same in every generation."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Description given when the group was made."""
        return self._desc

    # C++ calls these names, which torch's Python does not have (DDP's reducer divides by the size).

    def getRank(self) -> int:  # noqa: N802
        """Return this rank's place among the present members of the group."""
        return self.inner().rank()

    def getSize(self) -> int:  # noqa: N802
        """Return how many members of the group are present."""
        return self.inner().size()

    @property
    def _device_types(self) -> list[Any]:
        return self.inner()._device_types

    @property
    def bound_device_id(self) -> Any:
        """Device that the inner group is bound to, or None."""
        return self.inner().bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self.inner().bound_device_id = self._bound = device

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the inner group's collectives."""
        self.inner().set_timeout(timeout)


_meshes_ask: list[bool] = []


def meshes_ask() -> bool:
    """Return whether a device mesh has ever searched for a group; if not, no mesh matters."""
    return bool(_meshes_ask)


def named(name: str) -> GroupHandle | None:
    """Return the handle of the group that has this name now, for a mesh; None if the script was handed none."""
    _meshes_ask[:] = [True]
    handle = _handles.get(name)
    return handle if handle is not None and handle in c10d._world.pg_map else None


def _forward(name: str) -> Any:
    def choose(handle: GroupHandle) -> Any:
        return getattr(handle.inner(), name)

    leave_uncompiled(choose)
    return sent_on(getattr(dist.ProcessGroup, name), choose)


def _complete() -> None:
    """Give `GroupHandle` a forwarding method for each method of the installed torch's `ProcessGroup`."""
    for name in dir(dist.ProcessGroup):
        member = getattr(dist.ProcessGroup, name)
        if name.startswith("__") or name in _OWN or name in GroupHandle.__dict__:
            continue
        if callable(member) and not isinstance(member, type):
            setattr(GroupHandle, name, _forward(name))


_complete()
leave_methods_uncompiled(GroupHandle)
