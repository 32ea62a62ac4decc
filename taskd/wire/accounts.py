"""What a rank says of itself when it is asked what it is about."""

from typing import Annotated

import msgspec

from taskd.wire.bounds import Counter, Line, Name, Pid, Some


class LockSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A lock file that the main thread waits for: `core.evidence.LockFile`."""

    path: Line
    owner: Line
    pid: Pid = 0
    stale: bool = False


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A Python thread and its frames, innermost first, each `file:line in function`."""

    name: Name
    stack: Annotated[tuple[Line, ...], Some]


class Account(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent, in answer to `Ask`: what it is about (`core.evidence.Standing`), and its threads, main first."""

    number: Counter
    standing: Name
    threads: Annotated[tuple[ThreadStack, ...], Some]
    lock: LockSeen | None = None
