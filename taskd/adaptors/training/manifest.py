"""What describes a state on its way: its manifest, in a frame that shows whether it is as it was made.

A frame is a head and the manifest. The head has the manifest's length, its digest, and a check of these two. So a
length is known to be right before so much is waited for, and a manifest is whole before it is read.
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
    """One tensor on its way."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_ELEMENTS)]]
    device: str

    def size_bytes(self) -> int:
        """Without what is around it."""
        count = 1
        for length in self.shape:
            count *= length
        return count * tree.dtype_of(self.dtype).itemsize


class StateManifest(msgspec.Struct, frozen=True):
    """What a donor is about to send: the folded parts by name, the tensors in their order, and its own position.

    `loose` are the buffers that are in no `state_dict`, folded too; `plain` the modules' other attributes that changed.
    `name` is that of the part, `weights` are those of the replica set, `flags` those of FSDP2. `finite`: the newest
    loss is known to be. `layouts` are those of DDP wrappers (see `LentLayouts`), `taken` is what the self-check has
    taken in. `begun_at` is the step at which the training began, -1 if that is not known.
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
    """A manifest as it travels: `data` with its head, and the digest of it that counts for the whole stream."""

    data: bytes
    seal: bytes

    @classmethod
    def of(cls, manifest: StateManifest) -> "Framed":
        """Put its head before a manifest."""
        data = msgspec.msgpack.encode(manifest)
        seal = _hash(data, _SEAL_BYTES)
        head = len(data).to_bytes(_LENGTH_BYTES, "little") + seal
        return cls(head + _hash(head, _CHECK_BYTES) + data, seal)

    @classmethod
    def read(cls, receive: Callable[[int], bytes], first_bytes: int = HEAD_BYTES) -> "Framed":
        """The one that `receive` gives in pieces of as many bytes as it is asked for.

        `first_bytes` come first, the end of which is empty if all is shorter.

        Raises:
            DistrustError: it is not what was framed, whatever it is.
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
        """The manifest itself. Raises `msgspec.DecodeError` if another version of taskd has made it."""
        return msgspec.msgpack.decode(self.data[HEAD_BYTES:], type=StateManifest)


def _hash(data: bytes, size_bytes: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size_bytes).digest()
