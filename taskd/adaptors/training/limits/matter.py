"""One obstacle to recovery in place, as it is reported and refused."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Matter:
    """An obstacle, its remedy, and the recoveries that it prevents."""

    text: str
    remedy: str
    no_rebuild: bool = False
    """True if it prevents a recovery even when every process lives. Otherwise it does so only if one is replaced."""
