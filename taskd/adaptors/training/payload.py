"""What stands in a slot of the position file: the buffers of all random number generators, then the data positions.

Layout: the number of buffers and the length of each, 4 bytes each and little-endian; the buffers; the data positions as
msgpack, if there are any. Packing is little more than one join, since it is done twice in each step.
"""

import struct
from collections.abc import Mapping, Sequence

import msgspec

Buffer = bytes | memoryview
_COUNT = struct.Struct("<I")


class Packer:
    """Packs; knows the head of the buffers that it packed last."""

    def __init__(self) -> None:
        self._last: Sequence[Buffer] = ()
        self._head = b""

    def pack(self, rng: Sequence[Buffer], data: Mapping[str, bytes] | None = None) -> bytes:
        """Copy the present content of the buffers, and the encoded data positions."""
        if rng is not self._last:
            self._last = rng
            self._head = struct.pack(f"<{1 + len(rng)}I", len(rng), *map(len, rng))
        return b"".join((self._head, *rng) if data is None else (self._head, *rng, msgspec.msgpack.encode(data)))


def unpack(payload: bytes) -> tuple[list[bytes], dict[str, bytes]]:
    """Return what was packed. Raises `msgspec.DecodeError` or `struct.error` for anything else."""
    (count,) = _COUNT.unpack_from(payload)
    lengths = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
    at = _COUNT.size * (1 + count)
    rng = []
    for length in lengths:
        rng.append(payload[at : at + length])
        at += length
    return rng, msgspec.msgpack.decode(payload[at:], type=dict[str, bytes]) if at < len(payload) else {}
