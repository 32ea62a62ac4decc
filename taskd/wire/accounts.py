"""A rank's account of its own activity, which it sends on request."""

from typing import Annotated

import msgspec

from taskd.wire.bounds import Counter, Line, Name, Pid, Some


class LockSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A lock file that the main thread waits for: `core.diagnosis.evidence.LockFile`."""

    path: Line
    owner: Line
    pid: Pid = 0
    stale: bool = False


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A Python thread and its frames, innermost first, each `file:line in function`."""

    name: Name
    stack: Annotated[tuple[Line, ...], Some]


class Account(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent, in answer to `AccountRequest`: its activity, and its threads with the main thread first.

    `standing` is the value of a `core.diagnosis.evidence.Standing`.
    """

    number: Counter
    standing: Name
    threads: Annotated[tuple[ThreadStack, ...], Some]
    lock: LockSeen | None = None
