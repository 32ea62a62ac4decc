"""Kinds of parallel training and of process group, each a function. Each rank digests its result."""

from collections.abc import Callable

KINDS: dict[str, Callable[[], object]] = {}


def kind(function: Callable[[], object]) -> Callable[[], object]:
    """Register it under its name."""
    KINDS[function.__name__] = function
    return function
