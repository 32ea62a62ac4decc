"""Which modules of installed packages this process has imported: what a warm process should import in advance."""

import sys
import sysconfig
from typing import Final

from taskd.wire.codec import MAX_MODULES_BYTES

_LEFT_OUT: Final = frozenset(("taskd", "__main__", "__mp_main__", "mpi4py"))
"""Ours, the script, and what acts on the whole job when it is imported."""


def installed_modules() -> tuple[str, ...]:
    """Names of the imported modules whose file lies where packages are installed, in the order of their import.

    Parents are left out, for their children import them. So are the last ones if there are more than fit a message:
    a standby imports what it lacks when the script asks for it.
    """
    places = tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})
    names = [name for name, module in list(sys.modules.items()) if _is_installed(name, module, places)]
    parents = {name.rpartition(".")[0] for name in names}
    found: list[str] = []
    size_bytes = 0
    for name in names:
        size_bytes += len(name.encode()) + 5
        if name not in parents and size_bytes <= MAX_MODULES_BYTES:
            found.append(name)
    return tuple(found)


def _is_installed(name: str, module: object, places: tuple[str, ...]) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(places) and name.partition(".")[0] not in _LEFT_OUT
