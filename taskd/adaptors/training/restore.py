"""Restore of all ranks to one step: donors send, receivers are filled, and all get back random numbers and positions.

Rules:

1. Collective: every rank of the new world calls `restore` with the same plan, after its groups are formed and its
   wrappers re-pointed. When all ranks have their state, values that are made of all ranks' parts are made again.
2. All or nothing: a receiver is TORN from the first byte until everything has been loaded.
3. A donor lends its own random numbers and data position to a receiver if the receiver's node has no record of them. A
   copy contains those of its step. A rank that has loaded a copy sends the state to ranks that copied only their
   position.
4. If the plan requires it, all ranks go back to a checkpoint instead (see `saved`).
5. The first step after a restore must be finite (`FirstStep`). Otherwise its source is distrusted as if it had sent a
   damaged state.
6. If a donor's state arrives with another digest, this is reported, and the donor gives nothing away any more. A
   damaged copy is erased, and the next plan uses another one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.training.checkpoints.saved import go_back
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.packing import check, fill, manifest_of, pack, relay, send
from taskd.adaptors.training.recovery import StateRecovery
from taskd.errors import DistrustError, RefusedError, RestoreError
from taskd.runtime.worker.worker import allows_inexact
from taskd.wire.kinds import WorldRank
from taskd.wire.messages import Condition, WorldPlan
from taskd.wire.state import Load, Transfer


@dataclass(frozen=True)
class RestoreReport:
    """Result of one rank's restore: bytes sent or received, duration, and a note on inexact values ("" for none)."""

    size_bytes: int
    duration_ms: float
    note: str


def restore(
    recovery: StateRecovery, plan: WorldPlan, rank: WorldRank, copies: CopyFolder | None = None
) -> RestoreReport:
    """Bring this rank to `plan.target_step`: weights, optimizer and the rest, then RNG and data position.

    `rank` is the rank in the plan's world; `copies` are the copies that this rank can read.

    Raises:
        RestoreError: this rank's state is not the one that the plan expects, or a transfer failed. The state is then
            TORN if it was to be received, and untouched otherwise.
        DistrustError: the received state is not the one that was sent.
        RefusedError: this rank would continue from another place in its data than its own.
    """
    begun = time.monotonic()
    notes: list[str] = []
    recovery.in_flight.drop_step(plan.target_step)
    receivers = {receiver for transfer in plan.transfers for receiver in transfer.receivers}
    receives = rank in receivers or any(rank == load.receiver for load in plan.loads)
    if not plan.saved:
        notes.append(_stale(recovery, plan.target_step) if receives else _keep(recovery, plan, rank))
    size_bytes, lent, own = 0, b"", False
    try:
        for load in plan.loads:
            if rank in (load.holder, load.receiver):
                given = _load(recovery, load, plan, rank, copies)
                if given:
                    lent, own = given, load.of == plan.ranks[rank]
        for transfer in plan.transfers:
            if rank == transfer.donor or rank in transfer.receivers:
                moved_bytes, given = _transfer(recovery, transfer, plan, rank)
                size_bytes += moved_bytes
                lent = given or lent
        if rank in receivers and (found := _own_place(plan, rank, copies)):
            lent, own = found, True
        if plan.saved:
            lent, note = go_back(recovery, plan.target_step)
            notes, own = [note], True
        recovery.in_flight.complete()
    except (RuntimeError, ValueError, LookupError, TypeError, OverflowError, msgspec.DecodeError) as error:
        raise RestoreError(
            f"rank {rank} was not brought to step {plan.target_step}: {error!r}; a peer died, or the scripts differ"
        ) from error
    if copies is not None:
        copies.forget_after(plan.target_step)
    recovery.drop_step()
    notes.append(_of_another(recovery, received=rank in receivers))
    notes.append(recovery.return_to(plan.target_step, lent, own=own))
    if plan.transfers or plan.loads:
        recovery.watch_first_step(*_source(recovery, plan, rank, copies))
    recovery.inexact = "; ".join(note for note in notes if note)
    return RestoreReport(size_bytes, (time.monotonic() - begun) * 1e3, recovery.inexact)


def _transfer(recovery: StateRecovery, transfer: Transfer, plan: WorldPlan, rank: WorldRank) -> tuple[int, bytes]:
    """Send or receive the state; return the bytes moved and the position that was received."""
    lane, lent = _Lane(transfer, plan.world_size), b""
    if rank == transfer.donor:
        send(*pack(recovery), lane)
    else:
        lent = _receive(recovery, lane, plan, transfer.donor)
    return lane.size_bytes, lent


def _of_another(recovery: StateRecovery, *, received: bool) -> str:
    """Return a note if this rank has received BatchNorm statistics that are not its own, or ""."""
    if received and recovery.replicas.statistics:
        return "running statistics are another rank's: there is no copy of this rank's own"
    return ""


def _own_place(plan: WorldPlan, rank: WorldRank, copies: CopyFolder | None) -> bytes:
    """Return this rank's position at the plan's step from a copy on its node; empty if there is none."""
    file = copies.find(plan.ranks[rank], plan.target_step, place=True) if copies is not None else None
    if file is None:
        return b""
    try:
        return manifest_of(file).position
    except DistrustError:
        file.erase()
        return b""


def _stale(recovery: StateRecovery, step: int) -> str:
    """Refuse a position that is too old. Return the reason instead if the user allows inexact recoveries."""
    stale = recovery.late.why_stale(step)
    if stale and not allows_inexact():
        raise RefusedError(stale)
    return stale


def _source(
    recovery: StateRecovery, plan: WorldPlan, rank: WorldRank, copies: CopyFolder | None
) -> tuple[str, Callable[[], None]]:
    """Return where this rank's state came from ("" if it kept its own), and a function that distrusts this source."""

    def distrust(peer: WorldRank) -> Callable[[], None]:
        return lambda: setattr(recovery.replicas, "distrusts", plan.ranks[peer])

    for transfer in plan.transfers:
        if rank in transfer.receivers:
            return f"rank {plan.ranks[transfer.donor]}", distrust(transfer.donor)
    for load in plan.loads:
        if load.receiver == rank:
            text = f"the copy of rank {load.of}'s state of step {plan.target_step}"
            file = copies.find(load.of, plan.target_step) if copies is not None and load.holder == rank else None
            return text, distrust(load.holder) if file is None else file.erase
    return "", lambda: None


def _receive(recovery: StateRecovery, lane: "_Lane", plan: WorldPlan, donor: WorldRank) -> bytes:
    """Fill the state from another rank; return the position that comes with it."""
    try:
        return fill(recovery, lane, plan.target_step)
    except DistrustError as error:
        recovery.replicas.distrusts = plan.ranks[donor]
        raise DistrustError(
            f"the state that rank {plan.ranks[donor]} has sent has another digest here than there: a bit has flipped, "
            "in its memory, on the way or here; it gives nothing away any more"
        ) from error


def _load(recovery: StateRecovery, load: Load, plan: WorldPlan, rank: WorldRank, copies: CopyFolder | None) -> bytes:
    """Load a copy, or send it to the rank that loads it. Return the position in it if this rank loads it."""
    lane = _Lane(Transfer(donor=load.holder, receivers=(load.receiver,)), plan.world_size)
    if rank != load.holder:
        return _receive(recovery, lane, plan, load.holder)
    file = copies.find(load.of, plan.target_step) if copies is not None else None
    if file is None:
        raise RestoreError(f"there is no copy of rank {load.of}'s state of step {plan.target_step} here any more")
    try:
        if rank == load.receiver:
            return fill(recovery, file, plan.target_step)
        check(file)
    except DistrustError as error:
        file.erase()
        raise RestoreError(
            f"the copy of rank {load.of}'s state of step {plan.target_step} on rank {plan.ranks[rank]}'s node is "
            f"damaged ({error}): it is not used any more"
        ) from error
    relay(file, lane)
    return b""


def _keep(recovery: StateRecovery, plan: WorldPlan, rank: WorldRank) -> str:
    """Make this rank's own state the one of the target step; return a note on what is not exact, or ""."""
    condition = recovery.condition()
    if rank in plan.adopt and condition is Condition.STEPPED and recovery.step + 1 == plan.target_step:
        recovery.adopt()
        return ""
    if condition is not Condition.CLEAN or recovery.step != plan.target_step:
        raise RestoreError(
            f"rank {rank} is {condition.value} at step {recovery.step} and receives nothing; "
            f"expected clean at step {plan.target_step}"
        )
    return recovery.rollback()


class _Lane:
    """Route from one donor to its receivers over the default group: a broadcast if they are the whole world.

    On the host a single receiver gets direct messages, because each of gloo's broadcasts uses threads of its own.
    """

    digest = ""

    def __init__(self, transfer: Transfer, world_size: int) -> None:
        self._donor = transfer.donor
        self._receivers = transfer.receivers
        self.device = torch.device(c10d._get_object_coll_device())
        self._whole = len(set(transfer.receivers)) + 1 == world_size and (world_size > 2 or self.device.type != "cpu")
        self.size_bytes = 0

    def send(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.size_bytes += tensor.nbytes
        if self._whole:
            return _waiting([dist.broadcast(tensor, self._donor, async_op=True)])
        return _waiting([dist.isend(tensor, receiver) for receiver in self._receivers])

    def receive(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.size_bytes += tensor.nbytes
        if self._whole:
            return _waiting([dist.broadcast(tensor, self._donor, async_op=True)])
        return _waiting([dist.irecv(tensor, self._donor)])


def _waiting(works: "list[dist.Work | None]") -> Callable[[], None]:
    def wait() -> None:
        for work in works:
            if work is not None:
                work.wait()

    return wait
