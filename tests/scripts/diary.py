"""Reports of a script of `tests.scripts` to the harness: its moments, the values of each step, and its results.

Rules:

1. All of it is in files in SCRIPT_FOLDER, one of each kind for a rank. A rank's processes write on where the last one
   stopped. So a dead process's reports are kept, and the n-th moment of a rank is the n-th over all its processes.
2. SCRIPT_KILLS names moments ("rank:number:microseconds,…") after which the kernel kills the process, at once or so
   much later, wherever it has come to by then. "rank:number:microseconds:name" counts the moments of that name alone.
3. The values of a step are reported under a key. The last report counts: a step may be done again.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

LINE = 32
FOLDER = Path(os.environ.get("SCRIPT_FOLDER", "."))
RANK = int(os.environ.get("RANK", "0"))


if os.environ.get("SCRIPT_WALKS_ALONE") and "TASKD_PROCESS_ENABLE" in os.environ:
    from tests.scripts.walks_alone import leave_walks_alone

    leave_walks_alone()
if os.environ.get("SCRIPT_UNMENDED") and "TASKD_PROCESS_ENABLE" in os.environ:
    from tests.scripts.unmended import take_mendings_out

    take_mendings_out()


def _deadly() -> dict[tuple[str, int], int]:
    kills = (f"{kill}:".split(":")[:4] for kill in os.environ.get("SCRIPT_KILLS", "").split(",") if kill)
    return {(name, int(number)): int(delay_us) for rank, number, delay_us, name in kills if int(rank) == RANK}


_DEADLY = _deadly()
_NAMED = {name for name, _ in _DEADLY}


def moment(name: str, victim: int = 0) -> None:
    """Record a moment of this rank. A kill without delay strikes the process `victim` instead, if there is one."""
    line = f"{os.getpid()} {name}".ljust(LINE - 1)[: LINE - 1] + "\n"
    file = os.open(FOLDER / f"moments-{RANK}", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    size = os.fstat(file).st_size
    number = size // LINE
    delay_us = _DEADLY.get(("", number))
    if name in _NAMED:
        lines = os.pread(file, size, 0).decode().splitlines()
        delay_us = _DEADLY.get((name, [line.split(" ", 1)[1].strip() for line in lines].count(name)), delay_us)
    os.close(file)
    if delay_us is not None and any(path.stat().st_size for path in FOLDER.glob("saw-*")):
        unfinished = FOLDER / f"unfinished-{RANK}-{number}"  # the kill of another moment may come just now
        unfinished.write_text(str((FOLDER / "output-0.txt").stat().st_size))
        unfinished.rename(FOLDER / f"said-{RANK}-{number}")
    if delay_us == 0:
        os.kill(victim or os.getpid(), signal.SIGKILL)
    elif delay_us is not None:
        _kill_after(delay_us)


class _Event(ctypes.Structure):
    """sigevent(3): a signal when the timer is due."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


def _kill_after(delay_us: int) -> None:
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _Event(signo=signal.SIGKILL)
    once = (ctypes.c_long * 4)(0, 0, 0, delay_us * 1000)
    failed = libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) or libc.timer_settime(timer, 0, once, None)
    if failed:
        raise OSError(ctypes.get_errno(), "no timer to be killed by")


def saw(key, *values) -> None:
    """Record this rank's values at `key`, commonly a step: its loss, its samples."""
    with (FOLDER / f"saw-{RANK}").open("a") as file:
        file.write(json.dumps([str(key), [_plain(value) for value in values]]) + "\n")


def finish(*holders, **others) -> None:
    """Write the results: the digest of each object with a `state_dict`, and any other values that must be right."""
    digests = [fingerprint(holder.state_dict()) for holder in holders]
    text = json.dumps({"digests": digests, **{name: _plain(value) for name, value in others.items()}})
    (FOLDER / f"result-{RANK}").write_text(text)


def leave() -> None:
    """End a script that has a process group.

    Under stock torchrun at once: torch 2.13 aborts now and then while a thread of gloo still frees a tensor. NCCL's
    peers may still need this process then.
    """
    dist.barrier()
    if os.environ.get("TASKD_PROCESS_ENABLE") != "on" and dist.get_backend() == "gloo":
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


def fingerprint(value) -> str:
    """Return the SHA-256 of a tree of tensors and plain values. Prefixes of names that wrappers add do not count."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()[:16]


def _feed(digest, value) -> None:
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        digest.update(value.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            _feed(digest, one)
    else:
        digest.update(repr(value).encode())


def _plain(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
