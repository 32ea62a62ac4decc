"""Whose a lock file is that stays when its owner is killed, as torch's compiler cache makes one with O_EXCL.

The file itself says nothing. So a rank that makes one signs it: it writes into it who it is, and holds `flock` on it
until it is removed. The kernel lets go of that lock at the owner's death, whoever killed it, and shows it to everybody
on this node, of another container too.

Rules:

1. Stale is only what provably nobody holds: a signature of this boot of this kernel, made for this very file; its
   process is not there any more; nobody has the `flock`; and what it had started is not at work in the folder.
2. What is not signed was made without taskd. That nobody is seen to have it open proves nothing: processes of other
   users, containers and nodes are not seen. It is named, and never touched.
3. Of a process in another container only the `flock` tells, which is proof where this kernel alone keeps it: not on a
   file server, where a lock is lost with the connection. Compilers that live on there are not seen.
"""

from dataclasses import dataclass
from enum import Enum


class Hold(Enum):
    """Whose a lock file is."""

    GONE = "gone"
    """It has been removed meanwhile."""
    HELD = "held"
    LEFT = "left"
    """Its owner is dead, and what that has started still works in the folder."""
    STALE = "stale"
    """Provably nobody's."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signature:
    """What an owner writes into its lock file: who it is, and for which file. Times are in clock ticks."""

    boot: str
    namespace: int
    pid: int
    start_ticks: int
    device: int
    inode: int
    host: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a lock file by one that wants it.

    Attributes:
        there: what was opened still lies under its name.
        signature: None if there is none, or none that can be trusted.
        boot, namespace: of whoever looks.
        device, inode: of the file.
        alive: the process that has signed it is there; None if it is of another PID namespace.
        free: nobody has the `flock`.
        children: processes of its session or group that live.
        local: this kernel alone keeps the locks of its file system.
        open_by: processes that are seen to have it open, in words.

    """

    there: bool
    signature: Signature | None
    boot: str
    namespace: int
    device: int
    inode: int
    alive: bool | None = None
    free: bool = False
    children: int = 0
    local: bool = False
    open_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """A judgement. `words` are a sentence about the lock without an end; `pid` of an owner that lives and is seen."""

    hold: Hold
    words: str
    pid: int = 0


def judge(sight: Sight) -> Holding:
    """Whose the lock is, as far as it can be proven."""
    signature = sight.signature
    if not sight.there:
        return Holding(Hold.GONE, "it has been removed")
    if signature is None or (signature.device, signature.inode) != (sight.device, sight.inode):
        seen = f"{' and '.join(sight.open_by)} has it open" if sight.open_by else "no process seen here has it open"
        return Holding(Hold.UNKNOWN, f"it is not signed, so made without taskd, and {seen}")
    owner = f"process {signature.pid}"
    if signature.boot != sight.boot:
        words = f"{owner} of host {signature.host} has made it, on another node or before a reboot"
        return Holding(Hold.UNKNOWN, words)
    if signature.namespace == sight.namespace:
        return _of_here(sight, owner, signature.pid)
    if not sight.free:
        return Holding(Hold.HELD, f"{owner} of another container on this node holds it")
    if not sight.local:
        return Holding(
            Hold.UNKNOWN, f"{owner} of another container has made it, on a file server that may forget locks"
        )
    return Holding(Hold.STALE, f"{owner} of another container on this node held it and has ended")


def _of_here(sight: Sight, owner: str, pid: int) -> Holding:
    if sight.alive:
        return Holding(Hold.HELD, f"{owner} holds it", pid)
    if not sight.free:
        return Holding(Hold.HELD, f"{owner} has ended, and a process that it has forked holds it")
    if sight.children:
        words = f"{owner} has ended, and of what it has started {sight.children} still run{'s' * (sight.children == 1)}"
        return Holding(Hold.LEFT, words)
    return Holding(Hold.STALE, f"{owner} held it and has ended")
