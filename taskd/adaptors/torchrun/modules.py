"""Which modules of installed packages this process has imported: what a warm process should import in advance."""

import sys

from taskd.runtime.system.installed import is_installed
from taskd.wire.codec import MAX_MODULES_BYTES


def installed_modules() -> tuple[str, ...]:
    """Names of the imported modules whose file lies where packages are installed, in the order of their import.

    Parents are left out, for their children import them. So are the last ones if there are more than fit a message:
    a standby imports what it lacks when the script asks for it.
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
