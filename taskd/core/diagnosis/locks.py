"""Owners of lock files. A file made with O_EXCL, as in torch's compiler cache, stays when its owner is killed.

The file itself does not name its owner. So a rank that makes one signs it: it writes its identity into the file, and
holds `flock` on it until it is removed. The kernel releases that lock at the owner's death, whatever killed it. Every
process on this node can check the lock, even from another container.

Rules:

1. A lock is stale only if provably nobody holds it. Its signature is of this boot of this kernel, made for this very
   file. Its process does not exist any more, and nobody has the `flock`. No process that it started still works in the
   folder.
2. A lock without a signature was made without taskd. If no process is seen to have it open, that proves nothing:
   processes of other users, containers and nodes are invisible. Such a lock is reported, and never touched.
3. For a process in another container, the `flock` is the only evidence. It is proof where this kernel alone keeps it.
   It is none on a file server, where a lock is lost with the connection. Compilers that live on there are not seen.
"""

from dataclasses import dataclass
from enum import Enum


class Hold(Enum):
    """State of a lock file's ownership."""

    GONE = "gone"
    """It has been removed meanwhile."""
    HELD = "held"
    LEFT = "left"
    """Its owner is dead, and a process that the owner has started still works in the folder."""
    STALE = "stale"
    """It provably has no owner any more."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signature:
    """An owner's entry in its lock file: its own identity, and the file's. Times are in clock ticks."""

    boot: str
    namespace: int
    pid: int
    start_ticks: int
    device: int
    inode: int
    host: str


@dataclass(frozen=True, slots=True)
class Sight:
    """Observation of a lock file by a process that needs it.

    Attributes:
        there: the opened file still lies under its name.
        signature: None if there is none, or none that can be trusted.
        boot, namespace: of the observer.
        device, inode: of the file.
        alive: the process that has signed it exists; None if it is of another PID namespace.
        free: nobody has the `flock`.
        children: number of living processes of its session or group.
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
    """A judgement. `words`: a sentence about the lock, without its period. `pid`: of a living and visible owner."""

    hold: Hold
    words: str
    pid: int = 0


def judge(sight: Sight) -> Holding:
    """Return the owner of the lock, as far as it can be proven."""
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
