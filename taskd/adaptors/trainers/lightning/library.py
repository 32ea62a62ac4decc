"""The package that the user trains with, `lightning` or `pytorch_lightning`, and its inner modules by name.

Both hold the same classes under different names, and a trainer takes only strategies of its own package. The package
that the script has imported is chosen; if it has imported neither or both, `lightning`.
"""

import importlib
import importlib.util
import sys
from typing import Any, Final

_ROOTS: Final = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
_FABRIC: Final = {"lightning": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}


class Library:
    """One of the two packages, by the name of its distribution."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.root = _ROOTS[package]
        self.fabric_root = _FABRIC[package]

    def module(self, name: str) -> Any:
        """Return its inner module of that dotted name, "" for the package itself."""
        return importlib.import_module(f"{self.root}.{name}" if name else self.root)

    def fabric(self, name: str) -> Any:
        """Return a module of the package beneath it."""
        return importlib.import_module(f"{self.fabric_root}.{name}")


def chosen() -> Library:
    """Return the package that the script trains with.

    Raises:
        ImportError: neither is installed.
    """
    for there in (sys.modules.__contains__, lambda name: importlib.util.find_spec(name) is not None):
        for package in _ROOTS:
            if there(package):
                return Library(package)
    raise ImportError(
        "taskd.lightning found neither lightning nor pytorch_lightning; install one: pip install lightning"
    )
