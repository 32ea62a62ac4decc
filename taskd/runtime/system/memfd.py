"""Memory as a file without a name (memfd), by the C library.

A Python that was built for a C library older than the kernel's has no `os.memfd_create`.
"""

import ctypes
import errno
import os


def make_memfd(name: str, flags: int) -> int:
    """Return a descriptor; `name` is for people who read /proc. Raises `OSError`."""
    make = getattr(ctypes.CDLL(None, use_errno=True), "memfd_create", None)
    if make is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = int(make(name.encode(), ctypes.c_uint(flags)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
