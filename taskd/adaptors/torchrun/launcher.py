"""torchrun itself: where it is installed, how taskd gets into it, and how to run it with taskd in it."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taskd.adaptors.torchrun.install import install
from taskd.config.process import enable
from taskd.errors import PatchError

PATCH_MODULE: Final = "taskd.python.adaptor.patch"
SED_LINE: Final = f"import {PATCH_MODULE}"
_PLUGIN_GROUP: Final = "torchrun.handlers"


def launch(arguments: Sequence[str]) -> None:
    """Run torchrun in this process with taskd switched on. Exits as torchrun does."""
    enable()
    install()
    sys.argv = ["taskd run", *arguments]
    from torch.distributed.run import main

    main(list(arguments))


def torchrun_file() -> Path:
    """Return the installed torch's `run.py`, found without importing torch. Raises `PatchError` without a torch."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).parent / "distributed" / "run.py" if spec is not None and spec.origin else None
    if file is None or not file.is_file():
        raise PatchError(f"found no torch for {sys.executable}, expected an installed one: pip install torch")
    return file


def sed_lines() -> int:
    """Count the lines of the installed `run.py` that import the patch as a statement."""
    return torchrun_file().read_text().splitlines().count(SED_LINE)


def has_plugin() -> bool:
    """Return whether the installed packages make torch load the patch in every torchrun."""
    points = importlib.metadata.entry_points(group=_PLUGIN_GROUP)
    return any(point.module == PATCH_MODULE for point in points)
