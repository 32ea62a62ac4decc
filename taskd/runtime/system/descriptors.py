"""Open descriptors of this process, and its limit of them."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_OPEN = Path("/proc/self/fd")


def open_descriptors() -> int:
    """Return the number of open descriptors."""
    return len(os.listdir(_OPEN)) - 1  # without the one that lists them


def descriptor_limits() -> tuple[int, int]:
    """Return the soft and the hard limit of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _finite(soft), _finite(hard)


def set_descriptor_limit(soft: int) -> None:
    """Set the soft limit of this process, and so of its later children. Raises `OSError` or `ValueError`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.RLIM_INFINITY if soft == sys.maxsize else soft, hard))


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one: each connection costs a descriptor, even if its peer stays silent.

    For a process of ours alone: its children inherit the limit, and programs that use `select` may fail with a large
    one.
    """
    with suppress(ValueError, OSError):  # a system may have a lower limit
        set_descriptor_limit(descriptor_limits()[1])


def fill_standard_descriptors() -> None:
    """Open /dev/null for each closed descriptor from 0 to 2.

    Otherwise one of our sockets gets such a number, and a library that prints writes into it. Child processes do not
    inherit the new descriptors.
    """
    for number in range(3):
        if not os.path.lexists(_OPEN / str(number)):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def _finite(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
