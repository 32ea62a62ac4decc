"""How many descriptors a process may have."""

import resource
import sys
from contextlib import suppress


def descriptor_limit() -> int:
    """How many this process may have now."""
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if now == resource.RLIM_INFINITY else now


def raise_descriptor_limit() -> None:
    """As many as this process may allow itself: each connection costs one, also of a peer that never says anything.

    For a process of ours alone: whatever it starts inherits the limit, and programs that use `select` fear a large one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system may know a lower one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
