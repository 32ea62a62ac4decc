"""`LoneGroup`: a group of true rank and size without peers, for a newcomer that runs the user's set-up.

The calls: `all_reduce` leaves the tensor. `all_gather` and `reduce_scatter` copy the own contribution. `broadcast`,
`recv` and `scatter` from another rank leave the tensor. Barriers return at once. The values are not those of a real
world. They do not matter: a donor sends the state that counts before the newcomer trains.

torch's C++ fake backend does nearly all of it. Its work objects carry no result, which DDP's reducer requires, so
`allreduce` is answered here.

When the process has joined the real world, its lone groups refuse every call: code that still holds one would compute
alone.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as native
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.calls import GroupCall
from taskd.adaptors.groups.tables import enter
from taskd.adaptors.groups.uncompiled import leave_methods_uncompiled
from taskd.adaptors.seams.worker import FAKE
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.wire.kinds import WorldRank

_COMMUNICATES = ("gather", "reduce", "all_to_all", "alltoall", "broadcast", "scatter", "send", "recv", "barrier")
_LATER_NAMES = {
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}
"""Later names of calls. A torch that has one (2.13 on) calls it for the former name too: both would recurse."""
_OBJECT_RECEIVERS = ("broadcast_object_list", "scatter_object_list", "recv_object_list")


@dataclass
class Pretence:
    """A newcomer's view of the world until it is in it; `over` once it is."""

    rank: int
    world_size: int
    over: bool = False
    replays: bool = False
    """True if results of collectives are known from the first start. Messages between two ranks are not among them."""


class LoneGroup(dist.ProcessGroup):
    """A process group of `size` ranks in which only `rank` exists, for as long as the pretence lasts.

    Raises:
        RuntimeError: from every collective, when the pretence is over.
    """

    def __init__(self, rank: int, size: int, devices: Sequence[torch.device], pretence: Pretence) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stubs
        self._pretence, self._devices = pretence, devices
        fake = FAKE.find().use(rank, size)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in devices:
            self._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, fake)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Return a finished work whose result is `tensors`, unchanged."""
        self.refuse_if_over("allreduce")
        return finished(tensors)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return at once."""
        self.refuse_if_over("monitored_barrier")

    def split_group(self, ranks: Sequence[int], **options: Any) -> "LoneGroup | None":  # type: ignore[override]
        """Return a lone group of these of its ranks, None if its own rank is none of them."""
        if self.rank() not in ranks:
            return None
        part = LoneGroup(sorted(ranks).index(self.rank()), len(ranks), self._devices, self._pretence)
        part._set_group_name(options["group_name"])
        part._set_group_desc(options.get("group_desc") or "undefined")
        return part

    def get_group_store(self) -> Store:
        """Return a store that nobody else uses."""
        return HashStore()

    def _get_backend(self, device: torch.device) -> Any:
        """Return torch's fake backend; during `split_group`, one that may split."""
        return _Splitting() if _splitting else super()._get_backend(device)

    def refuse_if_over(self, call: str) -> None:
        """Raise RuntimeError rather than compute alone in a world that has others."""
        if self._pretence.replays and call in ("send", "recv", "recv_anysource"):
            raise RuntimeError(f"{call} in the set-up: a new process has nobody at the other end yet")
        if self._pretence.over:
            raise RuntimeError(
                f"{call} on process group {self.group_name!r} of this process's set-up, which has nobody else in it: "
                "the process has joined its world since. Something made in the set-up keeps a reference to the group: "
                "have it ask torch.distributed.group.WORLD, or a group of new_group, when it communicates"
            )


class _Splitting:
    """The backend attributes that torch's `split_group` reads."""

    supports_splitting, options = True, None

    def _set_sequence_number_for_group(self) -> None:
        pass


_splitting: list[bool] = []


@contextmanager
def splitting() -> Iterator[None]:
    """Let lone groups claim inside this context that they can be split."""
    _splitting.append(True)
    try:
        yield
    finally:
        _splitting.pop()


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: LoneGroup, *args: Any, **options: Any) -> Any:
        self.refuse_if_over(name)
        return getattr(super(LoneGroup, self), name)(*args, **options)

    method.__name__ = name
    method.__code__ = method.__code__.replace(co_name=name)  # by this pybind11 detects that the base class is meant
    method.__doc__ = f"`ProcessGroup.{name}` of one who is alone."
    return method


def communicating() -> list[str]:
    """Return the names of the installed torch's `ProcessGroup` methods by which ranks communicate, for a subclass."""
    return [
        name
        for name in dir(dist.ProcessGroup)
        if any(word in name for word in _COMMUNICATES) and not hasattr(dist.ProcessGroup, _LATER_NAMES.get(name, "-"))
    ]


for _name in communicating():
    if _name not in LoneGroup.__dict__:
        setattr(LoneGroup, _name, _refusing(_name))
leave_methods_uncompiled(LoneGroup)


def finished(tensors: Any) -> dist.Work:
    """Return a work that is done and has the result `tensors`, in the form that C++ callers require."""
    result = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(result)
    work: dist.Work = native._create_work_from_future(future)  # type: ignore[attr-defined]
    return work


def make(call: GroupCall, rank: int, pretence: Pretence) -> LoneGroup:
    """Make a lone group that serves the devices which the true backend would serve."""
    devices = [torch.device(kind) for kind in c10d.BackendConfig(c10d.Backend(call.backend)).get_device_backend_map()]
    group = LoneGroup(rank, call.size, devices, pretence)
    if call.device is not None:
        group.bound_device_id = call.device
    group._set_group_name(call.name)  # type: ignore[arg-type]
    group._set_group_desc("undefined" if call.desc is None else call.desc)
    return group


def build(
    call: GroupCall, ranks: list[WorldRank], pretence: Pretence, group_rank: int | None, store: Store
) -> tuple[Any, Any]:
    """Stand in for torch's helper in a newcomer: make a `LoneGroup` and enter it in the tables as torch would."""
    if not call.is_default and pretence.rank not in ranks:
        return c10d.GroupMember.NON_GROUP_MEMBER, None
    if call.tag not in (None, ""):
        existing = c10d._find_pg_by_ranks_and_tag(call.tag, list(ranks))
        if existing is not None:
            return existing, c10d._world.pg_map[existing][1]
    assert group_rank is not None
    group = make(call, group_rank, pretence)
    prefix_store = PrefixStore(f"{call.name}/", store)
    enter(group, call.name, call.backend, call.tag, prefix_store)
    return group, prefix_store


class ObjectCollectives:
    """Replacements for torch's receivers of objects, which unpickle a message: alone, they leave the list as it is.

    In a newcomer that message never came. The names are replaced in `torch.distributed` and
    `torch.distributed.distributed_c10d`. A module that had imported one of them by name before keeps torch's own.
    """

    def __init__(self, is_lone: Callable[[Any], bool]) -> None:
        self._is_lone = is_lone
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Replace the names; to be undone with `remove`."""
        for name in _OBJECT_RECEIVERS:
            original = getattr(c10d, name)
            self._originals[name] = original
            self._assign(name, self._careful(original))

    def remove(self) -> None:
        """Put torch's own functions back."""
        for name, original in self._originals.items():
            self._assign(name, original)
        self._originals.clear()

    @staticmethod
    def _assign(name: str, function: Callable[..., Any]) -> None:
        for module in (c10d, dist):
            setattr(module, name, function)

    def _careful(self, original: Callable[..., Any]) -> Any:
        signature = inspect.signature(original)

        def careful(*args: Any, **options: Any) -> Steps:
            given = signature.bind(*args, **options).arguments
            if not self._is_lone(given.get("group")):
                return (yield ORIGINAL)
            mine = given.get("scatter_object_input_list")
            if mine:
                given["scatter_object_output_list"][0] = mine[dist.get_rank(given.get("group"))]
            return given.get("src", given.get("group_src"))

        return around(original, careful)
