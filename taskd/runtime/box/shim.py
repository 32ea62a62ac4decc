"""The core of the shim, `libtaskd_core.so`, in this process.

Rules:

1. It is opened by its own path, so that the preloaded gate and Python share one instance. A second copy would have its
   own state: it is refused.
2. Where nothing is preloaded, `load_core` must come before torch's import. Otherwise gloo is bound past the core.
3. A library that is not whole is never given to the loader, which would kill the process.
4. A result of -errno from the core becomes a `ShimError` with the cause and the remedy.
"""

import errno
import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

from taskd.errors import ShimError
from taskd.runtime.box.elf import flaw

REINSTALL: Final = "reinstall taskd's wheel, or run `python csrc/build_libs.py` in its source tree"
_REASONS = {
    errno.ENOENT: ("there is no such file", "start the worker with the path that its agent made"),
    errno.EEXIST: ("something is there already", "remove it: it is left over from an agent that was killed"),
    errno.ENOSPC: ("the file system is full", "free space there, or give the container a larger /dev/shm"),
    errno.EACCES: ("access is denied", "run agent and worker as the same user"),
    errno.EPERM: ("it belongs to another user", "run agent and worker as the same user"),
    errno.ELOOP: ("it is a symbolic link, expected a file", "remove it: somebody tampered with the directory"),
    errno.EINVAL: ("it has not the size of a black box", "use the same version of taskd in agent and worker"),
    errno.ENODATA: ("it was cut short", "let nobody else write there; its process goes on and notes no more"),
    errno.EPROTO: ("it is not a black box of this version", "use the same version of taskd in agent and worker"),
    errno.EBUSY: ("another process has claimed it", "make one box for each process"),
    errno.EALREADY: ("this process has another box", "attach once per process"),
    errno.ENOTCONN: ("no process has claimed it", "wait until the worker has attached"),
    errno.ESRCH: ("its owner is dead", "read what it left"),
    errno.ETIMEDOUT: ("its owner did not answer in time", "see whether the process is stopped"),
    errno.ECANCELED: ("it was closed meanwhile", "close it after its users are done"),
}


@cache
def library_path(name: str = "libtaskd_core.so") -> Path:
    """Return the path of the installed `libtaskd.so` (for LD_PRELOAD) or `libtaskd_core.so`, even if it is missing."""
    return Path(__file__).resolve().parents[2] / "python" / "cython_api" / "libs" / name


@cache
def interface() -> Any:
    """Return the cffi view of csrc/taskd.h. Raises `ShimError` if it was not built."""
    try:
        return importlib.import_module("taskd.runtime._box").ffi
    except ImportError as error:
        raise ShimError(f"the generated module cannot be imported ({error}); {REINSTALL}") from error


@cache
def core() -> Any:
    """Return the loaded library. Raises `ShimError` if it is missing, broken or of another version."""
    path = library_path()
    ffi = interface()
    if wrong := flaw(path):
        raise ShimError(f"the core of the shim cannot be loaded: {path} {wrong}; {REINSTALL}")
    try:
        library = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise ShimError(f"the core of the shim cannot be loaded: {error}; {REINSTALL}") from error
    try:
        version = library.taskd_version()
    except AttributeError as error:
        raise ShimError(f"{path} is not the core of the shim: {error}; {REINSTALL}") from error
    if version != library.TASKD_VERSION:
        raise ShimError(f"{path} has version {version}, expected {library.TASKD_VERSION}; {REINSTALL}")
    return library


def load_core() -> None:
    """Load the core so that libraries loaded later, torch first of all, are bound to it. Starts no thread.

    Raises `ShimError` if it is missing, of another version, or not the first core in this process.
    """
    ffi = interface()
    own = core()
    ffi.dlopen(str(library_path()), ffi.RTLD_NOW | ffi.RTLD_GLOBAL)
    first = ffi.dlopen(None, ffi.RTLD_NOW).taskd_version
    if first != own.taskd_version:
        raise ShimError(
            f"another libtaskd_core.so than {library_path()} was loaded before it; "
            f"let LD_PRELOAD name {library_path('libtaskd.so')}, or nothing"
        )


def check(result: int, doing: str) -> int:
    """Return a result of the core. Raises `ShimError` if it is -errno."""
    if result >= 0:
        return result
    if -result not in errno.errorcode:  # the box's process has written this number, too large for the C library
        raise ShimError(f"{doing}: it answered {result}, expected 0 or an error's number; let nobody else write there")
    found, remedy = _REASONS.get(-result, (os.strerror(-result), "see the system's log"))
    raise ShimError(f"{doing}: {found} ({errno.errorcode[-result]}); {remedy}")


def told(result: int) -> int:
    """Return the result of a read of an open box. Raises `ShimError` if the box cannot be read."""
    return check(result, "black box cannot be read")
