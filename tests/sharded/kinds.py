"""Kinds of parallel training and of process group, each a function; what it returns is digested on each rank."""

from collections.abc import Callable

KINDS: dict[str, Callable[[], object]] = {}


def kind(function: Callable[[], object]) -> Callable[[], object]:
    """Run it under its name."""
    KINDS[function.__name__] = function
    return function
