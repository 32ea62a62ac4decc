"""The objects of some kinds that there are in this process, whoever holds them."""

import gc
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """Return them, subclasses' too, each once. By their types: proxies that pose as such an object are left alone."""
    everything = gc.get_objects()
    wanted = {kind for kind in set(map(type, everything)) if issubclass(kind, kinds)}
    return [one for one in everything if type(one) in wanted]
