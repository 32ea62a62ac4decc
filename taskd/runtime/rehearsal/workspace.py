"""A rehearsal's folder: a copy of the working directory for each run, and the records that the ranks write.

Rules:

1. Each run begins with the same files: the copy is made anew, under the same path. Files that the script writes by
   relative paths, such as checkpoints and logs, stay in the copy.
2. Paths that runs may share are linked, not copied: those that the user names, and virtual environments. Caches and
   `.git` are left out. A directory that is too large for copies is refused, with the remedy.
3. All of it is removed at the end.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taskd.config.rundir import SHORT, fits
from taskd.core.rehearsal.records import RankRecord, read
from taskd.errors import RehearsalError

MOST_BYTES: Final = 1 << 30
_MOST_FILES: Final = 50_000
_LEFT_OUT: Final = ("__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hg", ".svn")
_START: Final = """import sys

from taskd.adaptors.rehearsal.start import begin

begin({folder!r})
"""


class Workspace:
    """Folder of one rehearsal. `source` is the working directory; `shared` are paths in it that are linked."""

    def __init__(self, source: Path, shared: Sequence[str] = ()) -> None:
        self.source = source.resolve()
        self._shared = [(self.source / path).resolve() for path in shared]
        for path in self._shared:
            if not path.exists() or self.source not in path.parents:
                raise RehearsalError(f"--share {path}: found no such file or folder below {self.source}")
        self._check_size()
        self.root = Path(tempfile.mkdtemp(prefix="taskd-rehearsal-"))
        self.work = self.root / "work"
        self.folder = self.root / "ranks"
        self.run_dir = self.root / "run"
        if not fits(self.run_dir):
            self.run_dir = Path(tempfile.mkdtemp(prefix="taskd-rehearsal-", dir=SHORT)) / "run"
        self.output = self.root / "output.txt"

    def prepare(self) -> None:
        """Prepare the next run: files as they are in the user's directory, and nothing of the last run."""
        for path in (self.work, self.folder, self.run_dir):
            shutil.rmtree(path, ignore_errors=True)
        self.run_dir.mkdir(mode=0o700)
        self.folder.mkdir(mode=0o700)
        (self.folder / "sitecustomize.py").write_text(_START.format(folder=str(self.folder)))
        shutil.copytree(self.source, self.work, symlinks=True, ignore=self._ignored)
        for path in self._links():
            target = self.work / path.relative_to(self.source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
        for link in self._outer_links():
            link.unlink()
            link.symlink_to((self.source / link.relative_to(self.work)).resolve())

    def records(self, ranks: int) -> dict[int, RankRecord]:
        """Return the records that the ranks of the last run have written."""
        found = {}
        for rank in range(ranks):
            path = self.folder / f"rank-{rank}"
            found[rank] = read(path.read_text(errors="replace").splitlines() if path.exists() else ())
        return found

    def done(self, ranks: int) -> bool:
        """Return whether every rank has come to the end of the rehearsal."""
        return all((self.folder / f"done-{rank}").exists() for rank in range(ranks))

    def close(self) -> None:
        """Remove the whole folder."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self.root not in self.run_dir.parents:
            shutil.rmtree(self.run_dir.parent, ignore_errors=True)

    def as_users(self, text: str) -> str:
        """Return a text with the paths of the user's own directory, short where they lie in it."""
        return text.replace(f"{self.work}/", "").replace(str(self.work), str(self.source))

    def _check_size(self) -> None:
        size_bytes = files = 0
        for folder, folders, names in os.walk(self.source):
            here = Path(folder)
            ignored = self._ignored(folder, [*folders, *names])
            folders[:] = [name for name in folders if name not in ignored and not (here / name).is_symlink()]
            for name in names:
                if name not in ignored and not (here / name).is_symlink():
                    files += 1
                    size_bytes += (here / name).lstat().st_size
            if size_bytes > MOST_BYTES or files > _MOST_FILES:
                raise RehearsalError(
                    f"{self.source} has more than {MOST_BYTES >> 30} GiB or {_MOST_FILES} files, expected less: each "
                    "run has a copy of it. Name what the script only reads (--share data), or start it elsewhere"
                )

    def _ignored(self, folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        return {name for name in names if name in _LEFT_OUT or self._is_linked(here / name) or _is_odd(here / name)}

    def _is_linked(self, path: Path) -> bool:
        return path.resolve() in self._shared or (path / "pyvenv.cfg").is_file()

    def _links(self) -> list[Path]:
        found = list(self._shared)
        for folder, folders, _ in os.walk(self.source):
            here = Path(folder)
            found += [here / name for name in folders if (here / name / "pyvenv.cfg").is_file()]
            folders[:] = [name for name in folders if name not in _LEFT_OUT and here / name not in found]
        return list(dict.fromkeys(found))

    def _outer_links(self) -> list[Path]:
        """Return the copy's relative links that led out of the directory, and now lead nowhere."""
        found = []
        for folder, folders, names in os.walk(self.work):
            for name in (*folders, *names):
                path = Path(folder) / name
                if path.is_symlink() and not os.path.isabs(os.readlink(path)) and not path.exists():
                    found.append(path)
        return found


def _is_odd(path: Path) -> bool:
    """Return whether a path is a socket, a pipe or a device, which cannot be copied."""
    return not (path.is_symlink() or path.is_dir() or path.is_file())
