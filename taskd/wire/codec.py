"""Encoding and decoding of the messages of `taskd.wire.messages`.

Rules:

1. A frame is `MAGIC`, one byte of wire version, and one msgpack map. The version stands outside the map. So a peer of
   another version is recognized, whatever its map contains. This header is the same in every version, and so is the
   derivation of keys (`runtime/links/identity.py`). Otherwise another version would be mistaken for another secret.
2. An invalid frame raises `BadFrameError` (a `FrameError`) and nothing else, whatever its bytes are. Its `fault` is
   the check that rejected it, so a receiver can count by kind.
3. Sizes are checked before anything is decoded, in both directions.
4. A peer's text appears in an error only shortened and escaped, because it ends up in our log.
"""

from collections.abc import Hashable
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from taskd.errors import FrameError
from taskd.wire.checks import Inspection
from taskd.wire.fit import fit
from taskd.wire.messages import (
    Answer,
    Directive,
    Drain,
    EvidenceReport,
    FromAgent,
    FromLocal,
    FromManager,
    Join,
    NodeStatus,
    Refusal,
    ToLocal,
)
from taskd.wire.standbys import Become

MAGIC: Final = b"TD"
WIRE_VERSION: Final = 4
"""Version of the wire. Raise it with every change of a message between nodes.

`tests/wire/test_versions.py` compares the messages with a record.
"""
MAX_FRAME_BYTES: Final = 8 << 20
"""Bound of a frame between manager and agents: a directive for 100,000 ranks on 12,500 nodes needs about 1.2 MB."""
MAX_LOCAL_BYTES: Final = 200 << 10
"""Bound of a frame on a Unix socket: one datagram of the default send buffer (212,992 bytes).

The bound of `Become` and `Join` is `MAX_FRAME_BYTES`, because the kernel allows environments of 6 MiB.
"""
MAX_MODULES_BYTES: Final = 150_000
"""Bound of all names in one `Modules` together. That message is also sent on a Unix socket."""

_UNSENDABLE: Final = (UnicodeError, OverflowError, RecursionError, msgspec.ValidationError)

HEADER: Final = MAGIC + bytes([WIRE_VERSION])
"""First bytes of every frame. Alone they are a manager's answer to an agent of another version."""
_MAX_DETAIL_CHARS: Final = 200

_LARGE: Final = (NodeStatus, EvidenceReport, Directive, Refusal, Drain, Answer, Inspection, Become, Join)
Message = FromAgent | FromManager | FromLocal | ToLocal
_M = TypeVar("_M")
_Out_co = TypeVar("_Out_co", covariant=True)


class FrameFault(Enum):
    """The check that rejected a frame."""

    SIZE = "size"  # larger than the bound of its link
    MAGIC = "magic"  # no frame of taskd
    VERSION = "version"  # a frame of another wire version
    CONTENT = "content"  # the map is damaged, of an unknown kind, or has a field of a wrong type


class BadFrameError(FrameError):
    """A frame was rejected. `fault` is the check that rejected it."""

    def __init__(self, fault: FrameFault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class _Decoder(Protocol[_Out_co]):
    def decode(self, buf: bytes, /) -> _Out_co: ...


_encoder: Final = msgspec.msgpack.Encoder()
_from_agent: Final[_Decoder[FromAgent]] = msgspec.msgpack.Decoder(FromAgent)
_from_manager: Final[_Decoder[FromManager]] = msgspec.msgpack.Decoder(FromManager)
_from_local: Final[_Decoder[FromLocal]] = msgspec.msgpack.Decoder(FromLocal)
_to_local: Final[_Decoder[ToLocal]] = msgspec.msgpack.Decoder(ToLocal)


def encode(message: Message) -> bytes:
    """Return the frame of one message. Texts are made to fit their fields if necessary (`wire.fit`).

    Raises `BadFrameError` if the frame would be larger than its link allows, and for the reasons of `pack`.
    """
    frame = HEADER + pack(message)
    limit = MAX_FRAME_BYTES if isinstance(message, _LARGE) else MAX_LOCAL_BYTES
    _check_size(len(frame), limit, type(message).__name__)
    return frame


def pack(value: object) -> bytes:
    """Encode a message, or a part of a message that is sent as separate bytes.

    Raises `BadFrameError` if a number in it is out of range, or if a text has no msgpack form. Texts for the kernel,
    with bytes that are not UTF-8, have none.
    """
    with suppress(*_UNSENDABLE):
        return _packed(value)
    try:
        return _packed(fit(value))
    except _UNSENDABLE as error:
        kind = type(value).__name__
        raise BadFrameError(
            FrameFault.CONTENT, f"{kind} cannot be sent: {_detail(error)}; expected UTF-8, and numbers in their ranges"
        ) from error


def sendable(value: object) -> bool:
    """Return whether `pack` accepts a value. A value from a black box, another process's file, may hold any number."""
    try:
        pack(value)
    except BadFrameError:
        return False
    return True


def _packed(value: object) -> bytes:
    """Encode a value and decode it as its receiver will. A value that the receiver would reject raises here."""
    packed = _encoder.encode(value)
    if not isinstance(value, Directive):  # a directive is large, and its contents were checked when they were read
        _reader(cast(Hashable, type(value))).decode(packed)
    return packed


@cache
def _reader(kind: Hashable) -> _Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decode_from_agent(frame: bytes) -> FromAgent:
    """Decode a frame that the manager received. Raises `BadFrameError`."""
    return _decode(frame, _from_agent, MAX_FRAME_BYTES)


def decode_from_manager(frame: bytes) -> FromManager:
    """Decode a frame that an agent received from the manager. Raises `BadFrameError`."""
    return _decode(frame, _from_manager, MAX_FRAME_BYTES)


def decode_from_local(frame: bytes) -> FromLocal:
    """Decode a frame that an agent received from a process of its node. Raises `BadFrameError`."""
    return _decode(frame, _from_local, MAX_LOCAL_BYTES)


def decode_to_local(frame: bytes) -> ToLocal:
    """Decode a frame that a process received from its agent. Raises `BadFrameError`."""
    return _decode(frame, _to_local, MAX_FRAME_BYTES)


def _decode(frame: bytes, decoder: _Decoder[_M], limit: int) -> _M:
    _check_size(len(frame), limit, "a frame")
    if frame[: len(MAGIC)] != MAGIC or len(frame) < len(HEADER):
        raise BadFrameError(
            FrameFault.MAGIC,
            f"found a frame of {len(frame)} bytes that begins with {_shown(frame[:8])}, expected {MAGIC!r} and a "
            "version: the peer is not taskd; check who else uses this port",
        )
    version = frame[len(MAGIC)]
    if version != WIRE_VERSION:
        raise BadFrameError(
            FrameFault.VERSION,
            f"found a frame of wire version {version}, this taskd speaks version {WIRE_VERSION}: install the same "
            "taskd on every node",
        )
    try:
        return decoder.decode(frame[len(HEADER) :])
    # besides its own errors, msgspec passes UnicodeDecodeError (a ValueError) and RecursionError through
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise BadFrameError(
            FrameFault.CONTENT,
            f"found a frame of {len(frame)} bytes that is no known message: {_detail(error)}; expected a message of "
            f"wire version {WIRE_VERSION}; install the same taskd on every node",
        ) from error


def _check_size(size_bytes: int, limit: int, what: str) -> None:
    if size_bytes > limit:
        raise BadFrameError(
            FrameFault.SIZE, f"found {what} of {size_bytes} bytes, expected at most {limit}; it was refused"
        )


def _detail(error: Exception) -> str:
    return ascii(str(error))[1:-1][:_MAX_DETAIL_CHARS]


def _shown(data: bytes) -> str:
    return repr(bytes(data))
