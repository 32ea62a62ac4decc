"""Names of the modules that ranks import, for the warm processes of nodes that have no rank to learn them from."""

from taskd.wire.codec import MAX_MODULES_BYTES
from taskd.wire.messages import Modules

_EACH_BYTES = 5
"""Size of a name in a message beside its own bytes."""


class KnownModules:
    """Set of names. It grows until a message with all names would be larger than its link allows."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._bytes = 0

    def learn(self, names: tuple[str, ...]) -> bool:
        """Keep the names for which there is room, and return whether any was new."""
        known = len(self._names)
        for name in sorted(set(names) - self._names):
            size_bytes = self._bytes + len(name.encode()) + _EACH_BYTES
            if size_bytes <= MAX_MODULES_BYTES:
                self._names.add(name)
                self._bytes = size_bytes
        return len(self._names) > known

    def message(self) -> Modules | None:
        """Return a message with all names, for a node; None if there are none."""
        return Modules(names=tuple(sorted(self._names))) if self._names else None
