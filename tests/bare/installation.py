"""Installations as a user makes them: torch alone, the wheel beside torch, and the wheel alone.

Rules:

1. Files of third parties are linked from this interpreter's environment; nothing is downloaded. torchrun's own files
   are copied: `taskd patch` or a sed line changes them, and a link would change them for every environment. That line
   is left out of the copy: `scripts/demo.sh` has added it to the torch of this environment.
2. The wheel is built from a copy of the files that git lists for this checkout, and pip installs it.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from taskd.adaptors.torchrun.launcher import SED_LINE
from tests.e2e.job import ROOT

_COPIED = "torch/distributed/*.py"
_LIMIT_S = 300


class InstallationError(Exception):
    """The wheel or an installation cannot be made. The text is the tool's own output."""


@dataclass(frozen=True)
class Installation:
    """A virtual environment of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Folder of its packages."""
        return next(self.folder.glob("lib/python*/site-packages"))

    @property
    def gate(self) -> Path:
        """The library for LD_PRELOAD."""
        return self.site_packages / "taskd/python/cython_api/libs/libtaskd.so"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    source = folder / "source"
    names = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
    ]
    _run([*pip, "--wheel-dir", str(folder), str(source)])
    return next(folder.glob("*.whl"))


def make_installation(folder: Path, packages: Iterable[str], wheel: Path | None = None) -> Installation:
    """Make a virtual environment with `packages` and all their dependencies, and the wheel with all of its own."""
    venv.create(folder, symlinks=True, with_pip=False)
    made = Installation(folder)
    wanted = _closure([*packages, *(_needs("taskd") if wheel else [])])
    for name in sorted(wanted):
        _link(name, made.site_packages)
    if "torch" in wanted:
        _write_torchrun(made)
        for path in made.site_packages.glob(_COPIED):
            _copy(path)
    if wheel:
        install_wheel(made, wheel)
    return made


def install_wheel(made: Installation, wheel: Path, *options: str) -> None:
    """Install the wheel alone, by pip; `options` are pip's."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(made.python), "install", "-q"]
    _run([*pip, "--no-index", "--no-deps", *options, str(wheel)])


def _closure(names: Iterable[str]) -> set[str]:
    """Return these distributions and everything that they require here."""
    found = set[str]()
    open_names: list[str] = [canonicalize_name(name) for name in names]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += _needs(name)
    return found


def _needs(name: str) -> list[str]:
    requirements = [Requirement(text) for text in metadata.requires(name) or []]
    return [canonicalize_name(one.name) for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})]


def _link(name: str, site_packages: Path) -> None:
    """Link the files of a distribution. Its scripts are left out: their first lines name another interpreter."""
    found = metadata.distribution(name)
    for path in found.files or []:
        source = Path(str(found.locate_file(path)))
        if ".." in PurePath(path).parts or not source.is_file():
            continue
        target = site_packages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)


def _copy(path: Path) -> None:
    lines, stat = path.read_bytes().splitlines(keepends=True), path.stat()
    path.unlink()
    path.write_bytes(b"".join(line for line in lines if line.rstrip() != SED_LINE.encode()))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _write_torchrun(made: Installation) -> None:
    """Write the script that pip makes of torch's entry point."""
    script = made.folder / "bin" / "torchrun"
    lines = (
        "import sys",
        "from torch.distributed.run import main",
        "if __name__ == '__main__':",
        "    sys.exit(main())",
    )
    script.write_text("\n".join((f"#!{made.python}", *lines, "")))
    script.chmod(0o755)


def _run(command: list[str], *, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise InstallationError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
