"""One rank's whole state as a stream of bytes, which a donor sends and a copy holds.

Rules:

1. A stream is a frame with a manifest (`manifest.py`), the bytes of the tensors in its order, and a digest of all that.
   Small tensors travel together; empty ones do not travel. Over the network the first message has a fixed length and
   holds as much of the frame as fits. So a small state needs no separate message for the length.
2. Tensors go from memory to memory, into the receiver's own tensors where they fit. The whole state is never copied.
3. Nothing that a peer sends is unpickled freely (see `tree`).
4. The receiver compares the digest of the received bytes with the sender's. Both compute it while other tensors are in
   transit. Many tensors are in transit at a time, so the link never waits for Python. Few of them are copies made for
   the transfer.
5. Of a sharded tensor this rank's part is packed, for ranks that have the same part (see `shards`).
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.copies.copy_file import CopyFile
from taskd.adaptors.training.digests import DIGITS, RunningDigest, digest
from taskd.adaptors.training.manifest import HEAD_BYTES, Framed, StateManifest, TensorSlot
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.partitions import load, state_of
from taskd.adaptors.training.sharding.shards import Specs, is_part, local
from taskd.errors import DistrustError

_SMALL_BYTES = 256 * 1024  # a smaller tensor travels with its neighbours, since a copy costs less than a message
_PARCEL_BYTES = 4 * 1024 * 1024  # the most that a parcel of small tensors holds
_FIRST_BYTES = 1 << 14


_AT_ONCE = 128
"""Maximum number of tensors, or parcels of small ones, in transit at a time."""
_COPIES_AT_ONCE = 4
"""Maximum number of these that are in memory of their own."""
Wait = Callable[[], object]


class StreamSource(Protocol):
    """Source of a stream: the network, or a file."""

    @property
    def device(self) -> torch.device:
        """Device on which tensors travel."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the whole stream, if none follows the tensors; else ""."""
        ...

    def receive(self, tensor: torch.Tensor) -> Wait:
        """Start to fill a tensor with the next bytes. They are there after a call of the returned function."""
        ...


class Lane(StreamSource, Protocol):
    """Route of a stream over the network."""

    def send(self, tensor: torch.Tensor) -> Wait:
        """Start to send a tensor's bytes. They are in transit until the returned function was called."""
        ...


def pack(recovery: StateRecovery, *, everything: bool = False) -> tuple[StateManifest, list[torch.Tensor]]:
    """Return the manifest of the whole state as it is now, and this rank's own tensors in their order.

    With `everything` the result also suits a rank that has continued since: it includes buffers without changes so far.

    Raises:
        TypeError: the state holds a value that cannot be packed.
    """
    tensors: list[torch.Tensor] = []
    slots: list[TensorSlot] = []
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
        slots.append(TensorSlot(tree.dtype_name(tensor.dtype), list(tensor.shape), tensor.device.type))
        return len(tensors) - 1

    parts = {name: tree.fold(state_of(part), take) for name, part in recovery.parts.replicated.items()}
    loose = recovery.parts.loose
    buffers = tree.fold(loose.own() if everything else loose.changed(), take)
    position, changed = recovery.position(recovery.step), recovery.parts.plain.changed()
    replicas, flags = recovery.replicas, recovery.in_flight.flags
    manifest = StateManifest(
        recovery.step, parts, slots, position, buffers, changed, replicas.part, replicas.weights, flags,
        recovery.losses.known_finite, recovery.lent_layouts.own if everything else recovery.lent_layouts.gives,
        recovery.parts.taken.sent(), recovery.in_flight.begun_at,
    )  # fmt: skip
    return manifest, tensors


def pack_place(recovery: StateRecovery) -> StateManifest:
    """Return a manifest with this rank's data position and random numbers, and no state."""
    return StateManifest(recovery.step, {}, [], recovery.position(recovery.step))


def manifest_of(file: CopyFile) -> StateManifest:
    """Return the manifest of a copy. Raises `DistrustError` if it is damaged."""
    return _receive_frame(file).manifest


def send(manifest: StateManifest, tensors: list[torch.Tensor], lane: Lane) -> None:
    """Send a state along `lane`, followed by the digest of all of it."""
    parcels, frame = _parcels(manifest.slots), Framed.of(manifest)
    with RunningDigest(sum(slot.size_bytes() for slot in manifest.slots), frame.seal) as running:
        under_way = _UnderWay(lane.device)
        for wait in _send_frame(frame, lane):
            under_way.add(wait, copied=True)
        for parcel in parcels:
            alone = len(parcel) == 1 and _travels_itself(tensors[parcel[0]], lane)
            under_way.make_room(copied=not alone)
            for index in parcel:
                running.add(tensors[index])
            pieces = [tree.as_bytes(tensors[index].contiguous()).to(lane.device) for index in parcel]
            if len(pieces) > 1:
                pieces = [torch.cat(pieces, out=under_way.buffer(sum(map(len, pieces))))]
            under_way.add(lane.send(pieces[0]), copied=not alone)
        under_way.make_room(copied=True)
        under_way.add(lane.send(_bytes(running.result().encode(), lane)), copied=True)
        under_way.finish()


def fill(recovery: StateRecovery, lane: StreamSource, target_step: int) -> bytes:
    """Fill the state from the stream of `lane`; return the position that comes with it.

    Raises:
        DistrustError: the received state is not the one that was packed.
        ValueError, KeyError, TypeError, msgspec.DecodeError: it does not fit this rank's state.
    """
    frame = _receive_frame(lane)
    manifest = frame.manifest
    if manifest.step != target_step:
        raise ValueError(f"the donor stands at step {manifest.step}, expected {target_step}")
    if set(manifest.parts) != set(recovery.parts.replicated):
        raise ValueError(
            f"the donor's state has the parts {sorted(manifest.parts)}, this one {sorted(recovery.parts.replicated)}"
        )
    if manifest.name != recovery.replicas.part:
        raise ValueError(f"the donor has {manifest.name or 'all'} of the state, this rank {recovery.replicas.part}")
    targets: dict[int, torch.Tensor] = {}
    specs = Specs(recovery.parts)

    def give(body: int | list[int], own: torch.Tensor | None) -> torch.Tensor:
        index, spec = body if isinstance(body, list) else (body, None)
        if not 0 <= index < len(manifest.slots):
            raise ValueError(f"the state names tensor {index} of {len(manifest.slots)}")
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
            name: tree.unfold(manifest.parts[name], give, state_of(part))
            for name, part in recovery.parts.replicated.items()
        }
        loose = tree.unfold(manifest.loose, give, recovery.parts.loose.own())
        _receive_tensors(manifest, frame.seal, targets, lane)
        for name, part in recovery.parts.replicated.items():
            load(part, filled[name])
        recovery.parts.loose.put(loose or {})
        recovery.parts.plain.put(manifest.plain)
        recovery.parts.taken.put(manifest.taken)
        recovery.in_flight.take(manifest.flags, manifest.begun_at)
        recovery.replicas.take(manifest.weights)
        recovery.lent_layouts.arrive(manifest.layouts)
    recovery.losses.take(finite=manifest.finite)
    return manifest.position


def _receive_tensors(
    manifest: StateManifest, seal: bytes, targets: dict[int, torch.Tensor], lane: StreamSource
) -> None:
    under_way = _UnderWay(lane.device)
    with RunningDigest(sum(slot.size_bytes() for slot in manifest.slots), seal) as running:
        for parcel in _parcels(manifest.slots):
            _fill([targets[index] for index in parcel], lane, running, under_way)
        sent = _receive_digest(lane)
        under_way.finish()
        if running.result() != sent():
            raise DistrustError("the state that has come has another digest than that which was sent")


def check(file: CopyFile) -> None:
    """Compare a copy with its digest. Raises `DistrustError`."""
    frame, places = _receive_frame(file), []
    at = file.position
    for size_bytes in filter(None, (slot.size_bytes() for slot in frame.manifest.slots)):
        places.append((at, size_bytes))
        at += size_bytes
    if digest((file.tensor(*place) for place in places), before=frame.seal) != file.digest:
        raise DistrustError("the copy has another digest than when it was made")
    file.position = 0


def relay(source: StreamSource, lane: Lane) -> None:
    """Forward the stream of `source` along `lane`, with its digest."""
    frame = _receive_frame(source)
    for wait in _send_frame(frame, lane):
        wait()
    slots = frame.manifest.slots
    for parcel in _parcels(slots):
        size_bytes = sum(slots[index].size_bytes() for index in parcel)
        piece = torch.empty(size_bytes, dtype=torch.uint8, device=lane.device)
        source.receive(piece)()
        lane.send(piece)()
    lane.send(_bytes(_receive_digest(source)().encode(), lane))()


def _send_frame(frame: Framed, lane: Lane) -> list[Wait]:
    first, rest = frame.data[:_FIRST_BYTES].ljust(_FIRST_BYTES, b"\0"), frame.data[_FIRST_BYTES:]
    return [lane.send(_bytes(part, lane)) for part in (first, rest) if part]


def _bytes(data: bytes, lane: Lane) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(lane.device)


def _receive_digest(source: StreamSource) -> Callable[[], str]:
    """Return a function that waits for the next digest and returns it. A copy's own digest is there already."""
    if source.digest:
        return lambda: source.digest
    data = torch.empty(DIGITS, dtype=torch.uint8, device=source.device)
    wait = source.receive(data)

    def arrive() -> str:
        wait()
        return tree.bytes_of(data).decode(errors="replace")

    return arrive


def _receive_frame(source: StreamSource) -> Framed:
    """Receive the frame at the start of a stream. Raises `DistrustError` if it is not as it was sent."""
    first_bytes = HEAD_BYTES if isinstance(source, CopyFile) else _FIRST_BYTES
    return Framed.read(lambda size_bytes: _receive_bytes(source, size_bytes), first_bytes)


def _receive_bytes(source: StreamSource, size_bytes: int) -> bytes:
    data = torch.empty(size_bytes, dtype=torch.uint8, device=source.device)
    source.receive(data)()
    return tree.bytes_of(data)


def _target(slot: TensorSlot, own: torch.Tensor | None) -> torch.Tensor:
    """Return this rank's own tensor if the donor's fits into it, else a new one."""
    dtype = tree.dtype_of(slot.dtype)
    if own is not None and own.dtype == dtype and list(own.shape) == slot.shape and own.is_contiguous():
        return own.detach()
    return torch.empty(slot.shape, dtype=dtype, device=torch.device(slot.device))


class _UnderWay:
    """Parcels in transit, in order: at most `_AT_ONCE`, and at most `_COPIES_AT_ONCE` of them in memory of their own.

    That memory is reused as soon as its parcel has arrived, since new memory costs as much as the transfer itself.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: deque[torch.Tensor] = deque(maxlen=_COPIES_AT_ONCE)
        self._waits: deque[tuple[Wait, bool]] = deque()
        self._copies = 0

    def make_room(self, *, copied: bool) -> None:
        """Wait until another parcel may be sent off. `copied`: that parcel is in memory of its own."""
        while len(self._waits) >= _AT_ONCE or (copied and self._copies >= _COPIES_AT_ONCE):
            self._finish_first()

    def buffer(self, size_bytes: int) -> torch.Tensor:
        """Return `size_bytes` of memory for a copied parcel. Call `make_room` first."""
        oldest = self._buffers[0] if len(self._buffers) == _COPIES_AT_ONCE else None
        if oldest is None or len(oldest) < size_bytes:
            oldest = torch.empty(max(size_bytes, _PARCEL_BYTES), dtype=torch.uint8, device=self._device)
        self._buffers.append(oldest)
        return oldest[:size_bytes]

    def add(self, wait: Wait, *, copied: bool) -> None:
        """Add a parcel that was sent off. Call `make_room` before it is sent."""
        self._waits.append((wait, copied))
        self._copies += copied

    def finish(self) -> None:
        """Wait for all parcels."""
        while self._waits:
            self._finish_first()

    def _finish_first(self) -> None:
        wait, copied = self._waits.popleft()
        wait()
        self._copies -= copied


def _travels_itself(tensor: torch.Tensor, lane: StreamSource) -> bool:
    return tensor.device == lane.device and tensor.is_contiguous()


def _fill(targets: list[torch.Tensor], lane: StreamSource, running: RunningDigest, under_way: _UnderWay) -> None:
    """Receive one parcel into `targets`, which are added to the digest when they have arrived."""
    alone = len(targets) == 1 and _travels_itself(targets[0], lane)
    under_way.make_room(copied=not alone)
    parcel = tree.as_bytes(targets[0]) if alone else under_way.buffer(sum(target.nbytes for target in targets))
    wait = lane.receive(parcel)

    def arrive() -> None:
        wait()
        at = 0
        for target in targets:
            if not alone:
                tree.as_bytes(target).copy_(parcel[at : at + target.nbytes])
                at += target.nbytes
            running.add(target)

    under_way.add(arrive, copied=not alone)


def _parcels(slots: list[TensorSlot]) -> list[list[int]]:
    """Group the tensors into parcels, in the same way on both sides. Empty tensors do not travel."""
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
