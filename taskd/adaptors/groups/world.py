"""`GroupWorld`: the process groups of this process, over all generations.

Rules:

1. One seam. `init_process_group`, `new_group`, sub-groups and device meshes all make their groups through torch's
   `_new_process_group_helper`, looked up at each call. That name is replaced, so scripts that imported `new_group`
   before us are covered. So is the name by which a mesh finds its groups: it then holds handles as well.
2. All groups are handed out as `GroupHandle`s, the default group too. A variable that holds one stays usable.
3. Old groups leave all tables at once. They are destroyed later, on a thread, since gloo's destructor joins threads.
   The caller of `destroy_retired` guarantees that nothing points at them any more.
4. Groups made inside the training function cannot be rebuilt, because a newcomer stops before it. Each new world
   compares the fingerprint of all calls, so this is an error and not a hang.
5. Groups of `split_group` are split off again (`splits`). `rebuild` refuses a world with a group of `shrink_group`.
6. A world may have fewer members than the job has ranks. Groups are recorded in ranks of the job. Each is formed of its
   present members, in their order, and is whole again when the others are back.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # binds WORLD as default argument when imported: do it while that is None
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups import instances, lone, nccl, unstick
from taskd.adaptors.groups.batches import send_batches_to_inner
from taskd.adaptors.groups.calls import GroupCall, compare, strangers
from taskd.adaptors.groups.handle import GroupHandle, named
from taskd.adaptors.groups.members import Members, refuse_meshes
from taskd.adaptors.groups.rows import MeshRows
from taskd.adaptors.groups.settling import settle
from taskd.adaptors.groups.setup_results import Replay
from taskd.adaptors.groups.splits import SplitCall, Splits
from taskd.adaptors.groups.store import StoreLink, destroy, prefix
from taskd.adaptors.groups.tables import clear, enter_ranks
from taskd.adaptors.groups.thread_names import Naming, ThreadNames, nameless
from taskd.adaptors.groups.wrappers import watch
from taskd.adaptors.seams.worker import ABORT, MESH, TIMEOUT
from taskd.errors import RebuildError, RefusedError
from taskd.runtime.system.hidden import HiddenThread
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, finish, instead
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan

_log = logging.getLogger(__name__)


class GroupWorld:
    """The script's process groups, recorded as it makes them and made again in each generation. One per process.

    Args:
        breaker: frees this rank from its collectives, normally the shim's; without one, `/proc` gives gloo's sockets.

    Attributes:
        generation: that of the present groups; `store_key`: the start of their keys in the store, unless torchrun's.
        members: the ranks of the job that the present world is made of.
        made: how often the script has made the default group.
        section: number of the script's resilient function that this rank is in, from 1; 0 before the first.
        rows: the units that a smaller world may be made of, if the job has a mesh.
    """

    _installed: ClassVar["GroupWorld | None"] = None

    def __init__(self, breaker: Callable[[], object] | None = None, naming: Naming = nameless) -> None:
        self.generation = self.made = self.section = self._forming = self._oldest = 0
        self._naming = naming
        self.members = Members(())
        self._first: tuple[JobRank, ...] = ()
        self.rows: MeshRows | None = None
        self._breaker = breaker
        self._calls: list[GroupCall] = []
        self._pretence: lone.Pretence | None = None
        self._link = StoreLink()
        self._client: TCPStore | None = None
        self.store_key = ""
        self._retired: list[Any] = []
        self._destroyer: HiddenThread | None = None
        self._originals: dict[str, Any] = {}
        self._threads = ThreadNames()
        self._objects = lone.ObjectCollectives(self._is_lone)
        self._splits = Splits(self._in_making, self._remember, lambda: self.members)

    # Before the script runs.

    def observe(self, slots: tuple[JobRank, ...] = ()) -> None:
        """Install the seam in a normal worker, before its script makes a group.

        `slots` are the ranks of the job that start together; none: the first ones.

        Raises:
            RebuildError: another `GroupWorld` is installed, or a default group exists already.
        """
        if GroupWorld._installed is not None or dist.is_initialized():
            raise RebuildError(
                "process groups are watched already, or were made before taskd could watch them; "
                "one GroupWorld per process, installed before torch.distributed.init_process_group"
            )
        GroupWorld._installed = self
        self._first = slots
        watch()
        instances.watch()
        send_batches_to_inner()
        self._splits.install()
        MESH.find().use(named)
        self._replace("_new_process_group_helper", lambda original: around(original, self._make))

    def pretend(self, rank: JobRank, world_size: int) -> None:
        """Install the seam in a newcomer: its script sets itself up with true rank and size, and without a peer.

        No store is contacted and collectives return at once (see `lone`), until `rebuild` joins the real world.
        Object lists received from another rank stay as they are.

        Raises:
            RebuildError: as `observe`.
        """
        self.observe()
        self._pretence = lone.Pretence(rank, world_size)
        self._replace("rendezvous", lambda original: instead(original, self._rendezvous))
        self._replace("_store_based_barrier", lambda original: instead(original, _nothing))
        self._objects.install()

    def replay(self, path: Path, digest: str) -> Replay:
        """Answer the collectives of a newcomer's set-up with its predecessor's results, until the replay is ended."""
        assert self._pretence is not None
        self._pretence.replays = True
        return Replay(path, self.is_own, digest)

    # At a fault.

    def abandon(self) -> int:
        """Close this rank's side of all transfers, which frees waiting peers; return how many were closed.

        Called when an exception has left the training function. Any thread may call it.
        """
        aborted = nccl.abort(self.groups())
        if self._breaker is not None:
            return aborted + int(bool(self._breaker()))
        return aborted + unstick.break_without_shim()

    def groups(self) -> list[Any]:
        """Return the groups of the present generation that this rank is a member of."""
        return [group for call in self._calls if call.handle is not None and (group := call.handle.present) is not None]

    def outdate(self, generation: int) -> None:
        """Form no world older than this any more: a `rebuild` of one that is about to start raises `RebuildError`."""
        self._oldest = max(self._oldest, generation)

    def interrupt(self) -> int:
        """Make a `rebuild` that another thread waits in raise `RebuildError`; return how many connections were shut."""
        return self._link.interrupt() + self.abandon()

    def rebuild(self, plan: WorldPlan, rank: JobRank, more: Sequence[int] = ()) -> list[list[int]]:
        """Leave all old groups and form those of `plan.generation`, each member calling this with the same plan.

        `rank` is that in the job; afterwards `torch.distributed.get_rank` returns the one in the new world. Forming has
        `plan.timeout_s` per group; then the script's own timeouts hold. Old groups are kept until `destroy_retired`.
        `more` are numbers for the other ranks, as many on each: return those of every rank.

        Raises:
            RebuildError: the world could not be formed. No group exists then; a later plan may be tried, unless it is a
                RefusedError.
        """
        calls, members = self._alive_calls(), Members.of(plan)
        position, count = members.rank_of(rank), c10d._world.group_count
        self._check(calls, members, None if plan.dump else rank)
        self._leave()
        self._calls, self.store_key = calls, plan.store_key
        self._client = self._link.connect(plan.store_host, plan.store_port, plan.timeout_s)
        if plan.generation < self._oldest:
            raise RebuildError(f"generation {plan.generation} is outdated, {self._oldest} is the oldest to be formed")
        try:
            with TIMEOUT.find().use.limited(plan.timeout_s * (1 + len(calls)), self.interrupt):
                self._form(calls, plan, position, self._client)
                theirs = compare(calls, self.section, self.members, more)
        except (RuntimeError, ValueError, RefusedError) as error:  # all that c10d and gloo raise, DistError among them
            self._link.drop()
            self._leave()
            if isinstance(error, RefusedError):
                raise
            raise RebuildError(
                f"generation {plan.generation} was not formed by rank {position} of {plan.world_size} within "
                f"{plan.timeout_s:g} s: {error}; a peer died or does not reach this node: the next generation decides"
            ) from error
        c10d._world.group_count = count
        self.generation = plan.generation
        self._end_pretence()
        return theirs

    def destroy_retired(self) -> HiddenThread | None:
        """Destroy the groups of older generations on a thread, and on rank 0 their keys in the store too.

        Call it when nothing of the model points at them any more. Returns the thread, None if nothing was to do.
        """
        retired, self._retired = self._retired, []
        client = self._client if dist.get_rank() == 0 else None
        if not retired and client is None:
            return None
        self._destroyer = HiddenThread(
            partial(destroy, retired, client, self.store_key, self.generation, self._calls), "taskd-destroy"
        )
        return self._destroyer

    def settle(self, limit_s: float) -> bool:
        """Wait until no thread of a group needs the interpreter any more; return whether that was within `limit_s`.

        For a process that is about to end: see `settling`.
        """
        end_s = time.monotonic() + limit_s
        if self._destroyer is not None:
            self._destroyer.join(limit_s)
        self._threads.complete()
        return settle(max(0.0, end_s - time.monotonic()))

    def is_own(self, group: Any) -> bool:
        """Return whether this is a group of the job's ranks alone, which `rebuild` makes again."""
        return group is None or isinstance(group, GroupHandle)

    def strangers(self) -> str:
        """Return the present groups that cannot be made again, in words; "" if all can."""
        return strangers(self._calls, map(str, c10d._world.pg_names.values()))

    def current(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        """Return the group that a wrapper made with `group` must use now: its handle, else the default group."""
        if isinstance(group, GroupHandle):
            return group
        return c10d._get_default_group()

    # The seam.

    def _make(  # noqa: PLR0913, PLR0917  # torch's own signature and names
        self,
        group_size: int,
        group_rank: int | None,
        global_ranks_in_group: list[int],
        backend: str,
        store: Store,
        group_name: str,
        backend_options: Any = None,
        timeout: timedelta | None = None,
        pg_tag: str | None = None,
        device_id: torch.device | None = None,
        group_desc: str | None = None,
        **options: Any,
    ) -> Steps:
        assert timeout is not None  # torch's callers always fill it in
        if not global_ranks_in_group and dist.is_initialized():
            return (yield ORIGINAL)  # made with a store of the script's own, and with any peers it meets there
        if not global_ranks_in_group:
            self._calls.clear()  # the script starts again after destroy_process_group()
            whole = len(self._first) == group_size
            self.members = Members(self._first) if whole else Members.first(group_size)
        call = GroupCall(
            size=group_size,
            ranks=tuple(self.members.slots[member] for member in global_ranks_in_group),
            backend=str(backend),
            name=group_name,
            options=backend_options,
            timeout=timeout,
            tag=pg_tag,
            device=device_id,
            desc=group_desc,
            more=options,
        )
        ranks = list(map(WorldRank, global_ranks_in_group))
        if self._pretence is not None:
            group, prefix_store = lone.build(call, ranks, self._pretence, group_rank, store)
        else:
            group, prefix_store = yield from self._building(call, ranks, group_rank, store)
        self.made += call.is_default
        if isinstance(group, dist.ProcessGroup):
            if isinstance(group, GroupHandle):
                return group, prefix_store  # torch found an existing group of that tag and those ranks
            enter_ranks(group, global_ranks_in_group or range(group.size()))
            group = call.handle = GroupHandle(group)
        self._remember(call)
        return group, prefix_store

    def _building(self, call: GroupCall, ranks: list[WorldRank], group_rank: int | None, store: Store) -> Steps:
        make = self._originals["_new_process_group_helper"]
        nccl.spare()
        if call.is_default:
            nccl.forget_alarm(store)
        with self._in_making(call.name):
            given = (call.size, group_rank, ranks, c10d.Backend(call.backend), store, call.name)
            options = {
                "backend_options": call.options, "timeout": call.timeout, "pg_tag": call.tag, "device_id": call.device,
                "group_desc": call.desc, **call.more,
            }  # fmt: skip
            return (yield make, given, options)

    @contextmanager
    def _in_making(self, name: str) -> Iterator[None]:
        with self._naming(f"{self._forming}/{name}"), self._threads.of_new_threads():
            yield

    def _rendezvous(self, *args: Any, **options: Any) -> Iterator[tuple[Store, int, int]]:
        assert self._pretence is not None
        yield HashStore(), self._pretence.rank, self._pretence.world_size

    def _remember(self, call: GroupCall) -> None:
        self._calls.append(call)

    def _is_lone(self, group: Any) -> bool:
        found = group if group is not None else c10d._world.default_pg
        return isinstance(found.inner() if isinstance(found, GroupHandle) else found, lone.LoneGroup)

    def _replace(self, name: str, function: Callable[[Any], Any]) -> None:
        original = self._originals[name] = getattr(c10d, name)
        setattr(c10d, name, function(original))

    def _restore(self, *names: str) -> None:
        for name in names:
            setattr(c10d, name, self._originals.pop(name))

    def _end_pretence(self) -> None:
        if self._pretence is not None:
            self._pretence.over = True
            self._pretence = None
            self._restore("rendezvous", "_store_based_barrier")
            self._objects.remove()

    # Steps of a rebuild.

    def _alive_calls(self) -> list[GroupCall]:
        """Return the calls whose groups the script has not destroyed since."""
        if not dist.is_initialized():  # an earlier rebuild failed half way: it had sorted them out
            return self._calls
        return [call for call in self._calls if call.handle is None or call.handle.lives()]

    def _check(self, calls: list[GroupCall], members: Members, slot: JobRank | None) -> None:
        if not calls or not calls[0].is_default:
            raise RebuildError(
                "the script has made no default process group, so there is no world to rebuild; "
                "call torch.distributed.init_process_group before the resilient function"
            )
        if slot is not None and members != Members.first(calls[0].size):
            refuse_meshes(members, self.rows, slot)
        strange = self.strangers()
        if strange:
            raise RefusedError(f"{strange}; use new_group")

    def _leave(self) -> None:
        """Take every group out of torch's tables at once; keep the objects for `destroy_retired`."""
        default = c10d._world.default_pg
        for call in self._calls:
            if call.handle is not None:
                inner = call.handle.swap(None)
                self._retired.append(inner)
                if call.handle is default:
                    c10d._world.default_pg = inner  # the group that torch has entered, and aborts
        self._retired.extend(c10d._world.pg_map)
        if dist.is_initialized():
            ABORT.find().use()
            clear()

    def _form(self, calls: list[GroupCall], plan: WorldPlan, rank: WorldRank, client: TCPStore) -> None:
        root = PrefixStore(prefix(plan.store_key, plan.generation), client)
        self._forming = plan.generation
        self.members = Members.of(plan)
        everyone = self.members.present(plan.ranks)
        default = self._form_one(calls[0], plan, rank, PrefixStore("default_pg", root), everyone)
        c10d._update_default_pg(default)
        store = c10d._world.pg_map[default][1]
        for call in calls[1:]:
            ranks = self.members.present(call.ranks)
            if isinstance(call, SplitCall):
                with self._in_making(call.name):
                    self._splits.repeat(call, self.members, plan.timeout_s)
            elif ranks:
                self._form_one(call, plan, rank, store, ranks)

    def _form_one(
        self, call: GroupCall, plan: WorldPlan, rank: WorldRank, store: Store, ranks: Sequence[WorldRank]
    ) -> Any:
        """Form one group of those `ranks` of the new world; return its handle, None on a rank that is no member."""
        timeout = TIMEOUT.find().use.making(call.timeout, plan.timeout_s)
        now = replace(call, size=len(ranks), timeout=timeout)
        named = [] if call.is_default else list(ranks)
        place = ranks.index(rank) if rank in ranks else None
        group, _ = finish(self._building(now, named, place, store))
        if isinstance(group, dist.ProcessGroup):
            c10d._set_pg_timeout(call.timeout, group)
            enter_ranks(group, ranks)
            if call.handle is not None:
                call.handle.swap(group)
        return call.handle


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a barrier of a process that is alone."""
