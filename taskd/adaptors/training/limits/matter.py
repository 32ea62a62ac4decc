"""One thing that stands in the way of a recovery in place, as it is told and refused."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Matter:
    """What it is, and what it stands in the way of."""

    text: str
    remedy: str
    no_rebuild: bool = False
    """Even if every process lives; else only when one is to be replaced."""
