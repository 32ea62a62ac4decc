"""Content of a slot in the position file: the buffers of all random number generators, then the data positions.

Layout: the number of buffers and the length of each, 4 bytes each and little-endian; the buffers; the data positions as
msgpack, if there are any.
"""

import struct
from collections.abc import Sequence

import msgspec

from taskd.runtime.worker.pulse import Buffer

_COUNT = struct.Struct("<I")


def head_of(rng: Sequence[Buffer]) -> bytes:
    """Return the bytes before the buffers: their number and lengths."""
    return struct.pack(f"<{1 + len(rng)}I", len(rng), *map(len, rng))


def pack(rng: Sequence[Buffer], data: bytes = b"") -> bytes:
    """Copy the present content of the buffers and the encoded data positions into one payload."""
    return b"".join((head_of(rng), *rng, data))


def unpack(payload: bytes) -> tuple[list[bytes], dict[str, bytes]]:
    """Return a payload's buffers and data positions. Raises `msgspec.DecodeError` or `struct.error` for other bytes."""
    (count,) = _COUNT.unpack_from(payload)
    lengths = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
    at = _COUNT.size * (1 + count)
    rng = []
    for length in lengths:
        rng.append(payload[at : at + length])
        at += length
    return rng, msgspec.msgpack.decode(payload[at:], type=dict[str, bytes]) if at < len(payload) else {}
