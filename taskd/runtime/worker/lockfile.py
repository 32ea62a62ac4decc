"""Lock files that outlive a killed owner: each maker signs its own (see `core/diagnosis/locks.py`).

Rules:

1. A stale lock is taken over, not removed and made anew: it is signed anew under `flock`. So its name never disappears,
   and a waiting process does not take an unfinished build for finished.
2. Only a regular file of this user, with one name, is opened, never through a link. It is locked only if it is signed.
3. Where /proc is that of another PID namespace, nothing can be proven: nothing is signed or taken over there.
4. No error leaves this module: facts that cannot be read are unknown.
"""

import ctypes
import fcntl
import os
import re
import socket
import stat
import time
from contextlib import suppress
from typing import Final

from taskd.core.diagnosis.locks import Hold, Holding, Sight, Signature, judge
from taskd.runtime.system import processes
from taskd.wire import text

_FORM: Final = re.compile(
    r"taskd-lock boot=([0-9a-f-]{36}) pidns=(\d{1,20}) pid=(\d{1,9}) start=(\d{1,20}) file=(\d{1,20}):(\d{1,20})"
    r" host=(\S{1,255})\n"
)
_MOST_BYTES: Final = 1024
_LOCAL: Final = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0x858458F6, 0xCA451A4E)
)
"""Local file systems: ext2 to ext4, xfs, btrfs, tmpfs, overlay, zfs, f2fs, ramfs, bcachefs (linux/magic.h)."""
_STATFS_BYTES: Final = 256
_TRIES: Final = 3
_PAUSE_S: Final = 0.005
_MOST_TOLD: Final = 3


def sign(descriptor: int) -> None:
    """Sign the lock file with this descriptor, which this process has made, and hold it until that is closed."""
    here = _here()
    with suppress(OSError):
        if here is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # on NFS, EX needs a descriptor to write by
            file = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                _write(file, *here)
            finally:
                os.close(file)


def look(path: str) -> Holding:
    """Return how a lock file is held, and why."""
    descriptor, holding = _open(path)
    if descriptor is not None:
        os.close(descriptor)
    return holding


def take(path: str) -> tuple[int | None, Holding]:
    """Take a lock file over if it is stale, and return how it is held.

    The first result is a descriptor that holds it, signed by this process, or None if it was not taken over.
    """
    descriptor, holding = _open(path)
    if descriptor is None:
        return None, holding
    here = _here()
    if holding.hold is Hold.STALE and here is not None:
        with suppress(OSError):
            _write(descriptor, *here)
            return descriptor, holding
    os.close(descriptor)
    return None, holding


def _open(path: str) -> tuple[int | None, Holding]:
    """Return a descriptor of a lock file, and how it is held. A stale one is under `flock` then."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, Holding(Hold.GONE, "it has been removed")
    except OSError as error:
        return None, Holding(Hold.UNKNOWN, f"it cannot be opened ({error.strerror})")
    try:
        return descriptor, judge(_see(descriptor, path))
    except OSError as error:
        os.close(descriptor)
        return None, Holding(Hold.UNKNOWN, f"it cannot be looked at ({error.strerror})")


def _see(descriptor: int, path: str) -> Sight:
    known, here = os.fstat(descriptor), _here()
    own = stat.S_ISREG(known.st_mode) and known.st_uid == os.geteuid() and known.st_nlink == 1
    signature = _signature(descriptor) if own and here is not None else None
    boot, namespace = here or ("", 0)
    if signature is None:
        return Sight(_lies_at(path, known), None, boot, namespace, known.st_dev, known.st_ino, open_by=_open_by(path))
    alive = _is_alive(signature) if signature.namespace == namespace else None
    free = not alive and signature.boot == boot and _is_free(descriptor)
    return Sight(
        there=_lies_at(path, known),  # after the lock: whoever releases it has it until the file is removed
        signature=signature,
        boot=boot,
        namespace=namespace,
        device=known.st_dev,
        inode=known.st_ino,
        alive=alive,
        free=free,
        children=_children(signature) if free and alive is not None else 0,
        local=_is_local(descriptor),
    )


def _here() -> tuple[str, int] | None:
    """Return this boot of this kernel and this PID namespace; None if /proc is of another one."""
    boot = (processes.read("/proc/sys/kernel/random/boot_id") or "").strip()
    try:
        if not boot or os.readlink("/proc/self") != str(os.getpid()):
            return None
        return boot, os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _write(descriptor: int, boot: str, namespace: int) -> None:
    known, own, pid = os.fstat(descriptor), processes.stat(os.getpid()), os.getpid()
    host = re.sub(r"\s", "_", text.name(socket.gethostname())) or "-"
    start = own.start_ticks if own is not None else 0
    file = f"{known.st_dev}:{known.st_ino}"
    said = f"taskd-lock boot={boot} pidns={namespace} pid={pid} start={start} file={file} host={host}\n".encode()
    os.pwrite(descriptor, said, 0)
    os.ftruncate(descriptor, len(said))


def _signature(descriptor: int) -> Signature | None:
    found = _FORM.fullmatch(os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace"))
    if found is None:
        return None
    boot, namespace, pid, start, device, inode, host = found.groups()
    return Signature(boot, int(namespace), int(pid), int(start), int(device), int(inode), text.name(host))


def _lies_at(path: str, known: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), known)
    except FileNotFoundError:
        return False


def _is_alive(signature: Signature) -> bool:
    """Return whether the signing process is there, or may be."""
    known = processes.stat(signature.pid)
    if known is not None:
        return known.start_ticks == signature.start_ticks and known.alive
    with suppress(ProcessLookupError):
        os.kill(signature.pid, 0)
        return True  # one that /proc does not show
    return False


def _is_free(descriptor: int) -> bool:
    """Return whether nobody has the lock, which this process then has.

    Another process that inspects the file has the lock for some microseconds.
    """
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE_S)
    return False


def _children(signature: Signature) -> int:
    """Count the processes of its session or group. As long as there are any, its number is given to no other."""
    pid, after = signature.pid, processes.stat(signature.pid)
    if after is not None and after.start_ticks != signature.start_ticks:
        return 0
    others = processes.living([int(name) for name in os.listdir("/proc") if name.isdecimal()])
    return sum(pid in (known.session, known.group) for _, known in others)


def _is_local(descriptor: int) -> bool:
    known = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, known) != 0:
        return False
    return ctypes.c_long.from_buffer(known).value in _LOCAL


def _open_by(path: str) -> tuple[str, ...]:
    """Return the other processes of this user and container that have the file open, in words."""
    place, found = os.path.realpath(path), []
    for pid in (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()):
        with suppress(OSError):
            if any(_leads_to(f"/proc/{pid}/fd/{name}", place) for name in os.listdir(f"/proc/{pid}/fd")):
                found.append(f"process {pid} ({text.name(processes.name(int(pid)))})")
    return tuple(found[:_MOST_TOLD])


def _leads_to(link: str, place: str) -> bool:
    try:
        return os.readlink(link) == place
    except OSError:
        return False
