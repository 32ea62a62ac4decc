"""The objects of some kinds that there are in this process, whoever holds them, and kinds that may not be there."""

import gc
import sys
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """Return them, subclasses' too, each once. By their types: proxies that pose as such an object are left alone."""
    everything = gc.get_objects()
    wanted = {kind for kind in set(map(type, everything)) if issubclass(kind, kinds)}
    return [one for one in everything if type(one) in wanted]


def imported(module: str, name: str) -> type | None:
    """Return that class of a module, if anybody has imported it: nothing is imported to recognise an object."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None
