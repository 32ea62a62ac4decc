"""An environment with another torch: links to all that is installed, and changed files in the places of some."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.seams.breaking import parent


class Farm:
    """One environment in `folder`. Its torch is changed in place, and put back by the next change."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._site = folder / "lib" / version / "site-packages"
        installed = parent()
        for entry in installed.iterdir():
            if entry.name not in ("torch", "__pycache__"):
                (self._site / entry.name).symlink_to(entry)
        shutil.copytree(installed / "torch", self._site / "torch", copy_function=_link, symlinks=True)
        self._changed: list[str] = []

    def change(self, changes: Mapping[str, str]) -> None:
        """Be the installed torch but for these files."""
        for file in self._changed:
            (self._site / file).unlink()
            _link(str(parent() / file), str(self._site / file))
        self._changed = list(changes)
        for file, text in changes.items():
            (self._site / file).unlink()
            (self._site / file).write_text(text)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        os.symlink(source, target)
    return target
