"""Modules of installed packages that this process has imported: a warm process should import them in advance."""

import sys

from taskd.runtime.system.installed import is_installed
from taskd.wire.codec import MAX_MODULES_BYTES


def installed_modules() -> tuple[str, ...]:
    """Return the names of imported modules whose file lies where packages are installed, in the order of their import.

    Parents are left out, because their children import them. The last names are left out if there are more than fit a
    message: a standby imports a missing module when the script asks for it.
    """
    names = [
        name for name, module in list(sys.modules.items()) if is_installed(name, getattr(module, "__file__", None))
    ]
    parents = {name.rpartition(".")[0] for name in names}
    found: list[str] = []
    size_bytes = 0
    for name in names:
        size_bytes += len(name.encode()) + 5
        if name not in parents and size_bytes <= MAX_MODULES_BYTES:
            found.append(name)
    return tuple(found)
