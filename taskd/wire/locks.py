"""The part of an account that tells of a lock file."""

import msgspec

from taskd.wire.bounds import Line, Pid


class LockSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A lock file that the main thread waits for: `core.evidence.LockFile`."""

    path: Line
    owner: Line
    pid: Pid = 0
    stale: bool = False
