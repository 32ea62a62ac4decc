"""The check that the installed version of a trainer's library is one that its adapter fits."""

import importlib.metadata
import logging
from collections.abc import Iterable

from taskd.adaptors.seams.seam import Line, Look, installed

_log = logging.getLogger(__name__)


def misfit(package: str, table: Iterable[Line], look: Look = installed) -> str:
    """Return how the installed `package` differs from the adapter's expectations, in a sentence; "" if all fits."""
    difference = next(filter(None, (line.difference(look) for line in table)), "")
    return f"{difference}; {package} {version(package)} is not one that this taskd knows" if difference else ""


def fits(package: str, table: Iterable[Line], look: Look = installed) -> bool:
    """Return whether the adapter may be used; if not, log a warning, once for each call."""
    found = misfit(package, table, look)
    if found:
        _log.warning("%s. It trains as it is: at a fault all processes start anew", found)
    return not found


def version(package: str) -> str:
    """Return the version of an installed distribution, "?" of one that is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"
