"""An environment of this machine's packages without numpy and without all packages that need it. It costs no download.

torch loads numpy in C. So a hidden module in Python's imports would not show the behaviour of a machine without numpy.
"""

import re
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

SITE = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def make_environment(folder: Path) -> Path:
    """Make the environment in `folder`, of links to this environment's packages. Return its Python."""
    venv.EnvBuilder(symlinks=True).create(folder)
    left_out = _names_of(_need_numpy())
    target = folder / SITE.relative_to(sys.prefix)
    for path in SITE.iterdir():
        if path.name not in left_out:
            (target / path.name).symlink_to(path)
    return folder / "bin" / "python"


def _need_numpy() -> list[Distribution]:
    """Return numpy itself, and all distributions that require it, directly or not."""
    found = {_plain(one.metadata["Name"]): one for one in distributions(path=[str(SITE)])}
    needs = {
        name: {_plain(need) for need in one.requires or () if "extra ==" not in need} for name, one in found.items()
    }
    chosen = {"numpy"}
    while more := {name for name, its in needs.items() if its & chosen} - chosen:
        chosen |= more
    return [found[name] for name in chosen]


def _names_of(chosen: Iterable[Distribution]) -> set[str]:
    """Return the names in site-packages that these distributions have installed."""
    return {file.parts[0] for one in chosen for file in one.files or () if file.parts[0] != ".."}


def _plain(requirement: str) -> str:
    """Return the name at the start of a requirement, in the index's spelling."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()
