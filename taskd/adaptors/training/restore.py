"""Bring every rank to one step: donors send, receivers are filled, all go back to that step's random numbers and data.

Rules:

1. Collective: every rank of the new world calls `restore` with the same plan, after its groups are formed and its
   wrappers re-pointed.
2. Tensor by tensor, from the donor's memory into the receiver's own tensors where these fit. Small ones travel
   together. No copy of the whole state is made on either side.
3. All or nothing: a receiver is TORN from the first byte until everything has been loaded.
4. A donor lends its own random numbers and data position to a receiver whose node has none of the receiver's.
5. Nothing that a peer sends is unpickled freely (see `tree`).
6. What has arrived is compared with the donor's memory by a digest. A donor of whose state another digest arrives is
   told of, and gives nothing away any more.
7. Of sharded tensors the parts travel, between ranks that have the same part (see `shards`).
"""

import time
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.training import tree
from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.inflight.fsdp2 import Flags
from taskd.adaptors.training.plain import Sent
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.shards import Specs, is_part, local
from taskd.errors import DistrustError, RestoreError
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition, Transfer, WorldPlan

_SMALL_BYTES = 256 * 1024  # a tensor below this travels with its neighbours
_PARCEL_BYTES = 1024 * 1024  # and this much of them at a time
_MANIFEST_LIMIT_BYTES = 1 << 30


class _Slot(msgspec.Struct, frozen=True, array_like=True):
    """One tensor on its way."""

    dtype: str
    shape: list[int]
    device: str

    def size_bytes(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count * tree.dtype_of(self.dtype).itemsize


class _Manifest(msgspec.Struct, frozen=True):
    """What a donor is about to send: the folded parts by name, the tensors in their order, and its own position.

    `loose` are the buffers that are in no `state_dict`, folded too; `plain` the modules' other attributes that changed.
    `name` and `weights` are those of the replica set; `flags` those of FSDP2; `digest` that of the tensors.
    """

    step: int
    parts: dict[str, Any]
    slots: list[_Slot]
    position: bytes = b""
    loose: Any = None
    plain: list[Sent] = []
    name: str = ""
    weights: tuple[str, ...] = ()
    flags: Flags = []
    digest: str = ""


@dataclass(frozen=True)
class RestoreReport:
    """What one rank's restore took: bytes sent or received, its duration, and what is not exact ("" if all is)."""

    size_bytes: int
    duration_ms: float
    note: str


def restore(recovery: StateRecovery, plan: WorldPlan, rank: WorldRank) -> RestoreReport:
    """Bring this rank to `plan.target_step`: weights, optimizer and the rest, then RNG and data position.

    `rank` is that in the plan's world.

    Raises:
        RestoreError: this rank holds something else than the plan says, or a transfer failed; the state is then
            TORN if it was to receive, and untouched otherwise. A DistrustError if what came is not what was sent.
    """
    begun = time.monotonic()
    notes: list[str] = []
    recovery.in_flight.drop()
    receives = any(rank in transfer.receivers for transfer in plan.transfers)
    if not receives:
        notes.append(_keep(recovery, plan, rank))
    size_bytes, lent = 0, b""
    try:
        for transfer in plan.transfers:
            if rank == transfer.donor:
                size_bytes += _donate(recovery, _Lane(transfer, plan.world_size, plan.ranks[rank]))
            elif rank in transfer.receivers:
                lane = _Lane(transfer, plan.world_size, plan.ranks[transfer.donor])
                lent = _receive(recovery, lane, plan.target_step)
                size_bytes += lane.size_bytes
    except (RuntimeError, ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise RestoreError(
            f"rank {rank} was not brought to step {plan.target_step}: {error!r}; a peer died, or the scripts differ"
        ) from error
    recovery.drop_step()
    notes.append(recovery.return_to(plan.target_step, lent))
    return RestoreReport(size_bytes, (time.monotonic() - begun) * 1e3, "; ".join(note for note in notes if note))


def _keep(recovery: StateRecovery, plan: WorldPlan, rank: WorldRank) -> str:
    """Make this rank's own state the one of the target step; return what is not known about it."""
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
    """The way from one donor to its receivers over the default group: a broadcast if they are the whole world."""

    def __init__(self, transfer: Transfer, world_size: int, donor: JobRank) -> None:
        self.donor = donor
        self._donor = transfer.donor
        self._receivers = transfer.receivers
        self._whole = len(set(transfer.receivers)) + 1 == world_size
        self.device = torch.device(c10d._get_object_coll_device())
        self.size_bytes = 0

    def send(self, tensor: torch.Tensor) -> None:
        self.size_bytes += tensor.nbytes
        if self._whole:
            dist.broadcast(tensor, self._donor)
            return
        for work in [dist.isend(tensor, receiver) for receiver in self._receivers]:
            if work is not None:
                work.wait()

    def receive(self, tensor: torch.Tensor) -> None:
        self.size_bytes += tensor.nbytes
        if self._whole:
            dist.broadcast(tensor, self._donor)
        else:
            dist.recv(tensor, self._donor)


def _donate(recovery: StateRecovery, lane: _Lane) -> int:
    tensors: list[torch.Tensor] = []
    slots: list[_Slot] = []
    seen: dict[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]], int] = {}

    specs = Specs(recovery.parts)

    def take(tensor: torch.Tensor) -> int | list[int]:
        number = add(local(tensor))
        return [number, specs.index(tensor)] if is_part(tensor) else number

    def add(tensor: torch.Tensor) -> int:
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        known = seen.get(key) if tensor.numel() else None
        if known is not None:
            return known
        seen[key] = len(tensors)
        tensors.append(tensor)
        slots.append(_Slot(tree.dtype_name(tensor.dtype), list(tensor.shape), tensor.device.type))
        return len(tensors) - 1

    parts = {name: tree.fold(part.state_dict(), take) for name, part in recovery.parts.replicated.items()}
    loose = tree.fold(recovery.parts.loose.changed(), take)
    position, changed = recovery.position(recovery.step), recovery.parts.plain.changed()
    replicas, flags = recovery.replicas, recovery.in_flight.flags
    manifest = _Manifest(
        recovery.step,
        parts,
        slots,
        position,
        loose,
        changed,
        replicas.name,
        replicas.weights,
        flags,
        digest(tensors),
    )
    data = msgspec.msgpack.encode(manifest)
    lane.send(torch.tensor([len(data)], dtype=torch.int64, device=lane.device))
    lane.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(lane.device))
    for parcel in _parcels(slots):
        pieces = [tree.as_bytes(tensors[index].contiguous()).to(lane.device) for index in parcel]
        lane.send(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
    return lane.size_bytes


def _receive(recovery: StateRecovery, lane: _Lane, target_step: int) -> bytes:
    """Fill the state with the donor's; return the donor's own position."""
    manifest = _receive_manifest(lane)
    if manifest.step != target_step:
        raise ValueError(f"the donor stands at step {manifest.step}, expected {target_step}")
    if set(manifest.parts) != set(recovery.parts.replicated):
        raise ValueError(
            f"the donor's state has the parts {sorted(manifest.parts)}, this one {sorted(recovery.parts.replicated)}"
        )
    if manifest.name != recovery.replicas.name:
        raise ValueError(f"the donor has {manifest.name or 'all'} of the state, this rank {recovery.replicas.name}")
    targets: dict[int, torch.Tensor] = {}
    specs = Specs(recovery.parts)

    def give(body: int | list[int], own: torch.Tensor | None) -> torch.Tensor:
        index, spec = body if isinstance(body, list) else (body, None)
        slot = manifest.slots[index]
        if index not in targets:
            targets[index] = _target(slot, None if own is None else local(own))
        if spec is None:
            return targets[index]
        if own is not None and is_part(own) and local(own).data_ptr() == targets[index].data_ptr():
            return own
        return specs.make(spec, targets[index])

    with recovery.restoring(target_step):
        filled = {
            name: tree.unfold(manifest.parts[name], give, part.state_dict())
            for name, part in recovery.parts.replicated.items()
        }
        loose = tree.unfold(manifest.loose, give, recovery.parts.loose.own())
        for parcel in _parcels(manifest.slots):
            _fill([targets[index] for index in parcel], lane)
        if digest(targets[index] for index in range(len(manifest.slots))) != manifest.digest:
            recovery.replicas.distrusts = lane.donor
            raise DistrustError(
                f"the state that rank {lane.donor} has sent has another digest here than there: a bit has flipped, in "
                "its memory, on the way or here; it gives nothing away any more"
            )
        for name, part in recovery.parts.replicated.items():
            part.load_state_dict(filled[name])
        recovery.parts.loose.put(loose or {})
        recovery.parts.plain.put(manifest.plain)
        recovery.in_flight.take(manifest.flags)
        recovery.replicas.take(manifest.weights)
    return manifest.position


def _receive_manifest(lane: _Lane) -> _Manifest:
    length = torch.zeros(1, dtype=torch.int64, device=lane.device)
    lane.receive(length)
    size = int(length.item())
    if not 0 < size <= _MANIFEST_LIMIT_BYTES:
        raise ValueError(f"the donor announces {size} bytes of manifest, expected 1 to {_MANIFEST_LIMIT_BYTES}")
    data = torch.empty(size, dtype=torch.uint8, device=lane.device)
    lane.receive(data)
    return msgspec.msgpack.decode(data.cpu().numpy().tobytes(), type=_Manifest)


def _target(slot: _Slot, own: torch.Tensor | None) -> torch.Tensor:
    """Return this rank's own tensor if the donor's fits into it, else a new one."""
    dtype = tree.dtype_of(slot.dtype)
    if own is not None and own.dtype == dtype and list(own.shape) == slot.shape and own.is_contiguous():
        return own.detach()
    return torch.empty(slot.shape, dtype=dtype, device=torch.device(slot.device))


def _fill(targets: list[torch.Tensor], lane: _Lane) -> None:
    """Receive one parcel into `targets`."""
    if len(targets) == 1 and targets[0].device == lane.device:
        lane.receive(tree.as_bytes(targets[0]))
        return
    parcel = torch.empty(sum(target.nbytes for target in targets), dtype=torch.uint8, device=lane.device)
    lane.receive(parcel)
    at = 0
    for target in targets:
        tree.as_bytes(target).copy_(parcel[at : at + target.nbytes])
        at += target.nbytes


def _parcels(slots: list[_Slot]) -> list[list[int]]:
    """Group the tensors for the journey: both sides come to the same list. Empty tensors do not travel."""
    parcels: list[list[int]] = []
    room_bytes = 0
    for index, slot in enumerate(slots):
        size_bytes = slot.size_bytes()
        if size_bytes == 0:
            continue
        if size_bytes >= _SMALL_BYTES:
            parcels.append([index])
            room_bytes = 0
        elif size_bytes <= room_bytes:
            parcels[-1].append(index)
            room_bytes -= size_bytes
        else:
            parcels.append([index])
            room_bytes = _PARCEL_BYTES - size_bytes
    return parcels
