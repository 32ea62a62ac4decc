"""The manifest of a state in transit, in a frame that shows whether the manifest is intact.

A frame is a head and the manifest. The head holds the manifest's length, its digest, and a checksum of these two. So
the length is verified before that many bytes are awaited, and the manifest is verified before it is decoded.
"""

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from taskd.adaptors.training import tree
from taskd.adaptors.training.inflight.fsdp2 import Flags
from taskd.adaptors.training.parts.plain import Sent
from taskd.adaptors.training.parts.taken_in import Taken
from taskd.errors import DistrustError

_LIMIT_BYTES: Final = 1 << 30
_LENGTH_BYTES, _SEAL_BYTES, _CHECK_BYTES = 8, 16, 8
HEAD_BYTES: Final = _LENGTH_BYTES + _SEAL_BYTES + _CHECK_BYTES
_MOST_ELEMENTS: Final = 1 << 48


class TensorSlot(msgspec.Struct, frozen=True, array_like=True):
    """Description of one tensor in transit."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_ELEMENTS)]]
    device: str

    def size_bytes(self) -> int:
        """Return the size of the tensor's elements alone."""
        count = 1
        for length in self.shape:
            count *= length
        return count * tree.dtype_of(self.dtype).itemsize


class StateManifest(msgspec.Struct, frozen=True):
    """Description of the state that a donor is about to send.

    Attributes:
        step: committed steps of the state.
        parts: the folded parts, by name.
        slots: the tensors, in their order.
        position: the donor's own position.
        loose: the buffers that are in no `state_dict`, folded too.
        plain: other attributes of the modules that have changed.
        name: name of the donor's part of the state, "" for all of it.
        weights: digests of the weights of the donor's replica set.
        flags: flags of FSDP2's modules.
        finite: whether the newest loss is known to be finite.
        layouts: bucket layouts of DDP wrappers (see `LentLayouts`).
        taken: values that the self-check has added to the state.
        begun_at: step at which the training began, -1 if that is not known.
    """

    step: int
    parts: dict[str, Any]
    slots: list[TensorSlot]
    position: bytes = b""
    loose: Any = None
    plain: list[Sent] = []
    name: str = ""
    weights: tuple[str, ...] = ()
    flags: Flags = []
    finite: bool = False
    layouts: dict[int, list[list[int]]] = {}
    taken: list[Taken] = []
    begun_at: int = -1


class Framed(NamedTuple):
    """A manifest in transit: `data` is the head and the manifest, `seal` its digest, which the stream's includes."""

    data: bytes
    seal: bytes

    @classmethod
    def of(cls, manifest: StateManifest) -> "Framed":
        """Encode a manifest and put its head before it."""
        data = msgspec.msgpack.encode(manifest)
        seal = _hash(data, _SEAL_BYTES)
        head = len(data).to_bytes(_LENGTH_BYTES, "little") + seal
        return cls(head + _hash(head, _CHECK_BYTES) + data, seal)

    @classmethod
    def read(cls, receive: Callable[[int], bytes], first_bytes: int = HEAD_BYTES) -> "Framed":
        """Receive a frame. `receive` returns as many bytes as it is called with.

        The first piece has `first_bytes`. Its end is padding if the frame is shorter.

        Raises:
            DistrustError: the bytes are not those of a frame as it was made.
        """
        first = receive(first_bytes)
        said, check = first[: HEAD_BYTES - _CHECK_BYTES], first[HEAD_BYTES - _CHECK_BYTES : HEAD_BYTES]
        size, seal = int.from_bytes(said[:_LENGTH_BYTES], "little"), said[_LENGTH_BYTES:]
        if _hash(said, _CHECK_BYTES) != check or size > _LIMIT_BYTES:
            raise DistrustError("what has come does not begin as a state does")
        data = first[: HEAD_BYTES + size]
        if len(data) < HEAD_BYTES + size:
            data += receive(HEAD_BYTES + size - len(data))
        if _hash(data[HEAD_BYTES:], _SEAL_BYTES) != seal:
            raise DistrustError("the description of the state that has come has another digest than when it was made")
        return cls(data, seal)

    @property
    def manifest(self) -> StateManifest:
        """Decoded manifest. Raises `msgspec.DecodeError` if another version of taskd has made it."""
        return msgspec.msgpack.decode(self.data[HEAD_BYTES:], type=StateManifest)


def _hash(data: bytes, size_bytes: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size_bytes).digest()
