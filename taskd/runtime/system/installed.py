"""Modules of packages installed for this interpreter, which a warm process may import in advance.

A name from another node is a wish. The script's own folder, the standard library and programs (`__main__`) are not
imported here for others.
"""

import importlib.util
import sysconfig
from collections.abc import Iterable
from functools import cache
from typing import Final

_LEFT_OUT: Final = frozenset(("taskd", "__main__", "__mp_main__", "mpi4py"))
"""Left out: our modules, the script, and modules that act on the whole job when they are imported."""


def is_installed(name: str, file: object) -> bool:
    """Return whether a module that lies in this file may be imported in advance."""
    return isinstance(file, str) and file.startswith(_places()) and _is_allowed(name)


def only_installed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names whose top package is installed here. Imports nothing."""
    return tuple(name for name in names if _is_allowed(name) and _lies_with_packages(name.partition(".")[0]))


def _is_allowed(name: str) -> bool:
    parts = name.split(".")
    return parts[0] not in _LEFT_OUT and all(part.isidentifier() and part != "__main__" for part in parts)


@cache
def _places() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})


@cache
def _lies_with_packages(top: str) -> bool:
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    if found is None:
        return False
    files = [found.origin] if found.has_location else list(found.submodule_search_locations or ())
    return any(isinstance(file, str) and file.startswith(_places()) for file in files)
