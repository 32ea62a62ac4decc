"""Which modules of installed packages this process has imported: what a warm process should import in advance."""

import sys
import sysconfig
from typing import Final

_LEFT_OUT: Final = ("taskd", "__main__", "__mp_main__")


def installed_modules() -> tuple[str, ...]:
    """Names of all imported modules whose file lies where packages are installed, in the order of their import."""
    places = tuple({f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib")})
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(places) and name.partition(".")[0] not in _LEFT_OUT:
            found.append(name)
    return tuple(found)
