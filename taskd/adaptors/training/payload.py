"""What stands in a slot of the position file: the buffers of all random number generators, then the data positions.

Layout: the number of buffers and the length of each, 4 bytes each and little-endian; the buffers; the data positions as
msgpack, if there are any. Packing is one join, since it is done twice in each step.
"""

import functools
import struct
from collections.abc import Mapping, Sequence

import msgspec

_COUNT = struct.Struct("<I")


def pack(rng: Sequence[bytes | memoryview], data: Mapping[str, bytes] | None = None) -> bytes:
    """Copy the present content of the buffers, and the encoded data positions."""
    head = _head(*map(len, rng))
    return b"".join((head, *rng) if data is None else (head, *rng, msgspec.msgpack.encode(data)))


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


@functools.lru_cache
def _head(*lengths: int) -> bytes:
    return struct.pack(f"<{1 + len(lengths)}I", len(lengths), *lengths)
