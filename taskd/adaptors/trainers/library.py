"""Whether the installed version of a trainer's library is one that its adapter fits."""

import importlib.metadata
import logging
from collections.abc import Iterable

from taskd.adaptors.seams.seam import Line, Look, installed

_log = logging.getLogger(__name__)


def misfit(package: str, table: Iterable[Line], look: Look = installed) -> str:
    """What the installed `package` has otherwise than the adapter expects, in a sentence; "" if all fits."""
    difference = next(filter(None, (line.difference(look) for line in table)), "")
    return f"{difference}; {package} {version(package)} is not one that this taskd knows" if difference else ""


def fits(package: str, table: Iterable[Line], look: Look = installed) -> bool:
    """Whether the adapter may be used; otherwise that is warned of, once for each call."""
    found = misfit(package, table, look)
    if found:
        _log.warning("%s. It trains as it is: at a fault all processes start anew", found)
    return not found


def version(package: str) -> str:
    """That of an installed distribution, "?" of one that is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"
