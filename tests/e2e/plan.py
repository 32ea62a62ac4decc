"""Points of a test's plan at which the ranks of its job meet it (`tests/e2e/scripts/points.py`)."""

from typing import Any

Points = list[dict[str, Any]]


def point(name: str, rank: int, *at: object, do: str = "hold", always: bool = False) -> dict[str, Any]:
    """Return a point of one rank: a place of the script, or a step and a place in it."""
    return {"name": name, "rank": rank, "at": list(at), "do": do, "always": always}
