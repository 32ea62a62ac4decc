"""The directories of checkpoints: their names, their creation, and the check that one is complete.

Rules:

1. A checkpoint is written under a hidden name that ends in `.partial`. It is renamed to `step-N` once all its files are
   on the disk, with a manifest (`taskd.json`) that names each of them and its size.
2. Existing files and folders are never replaced or removed. If the name is taken, it is `step-N.1` and so on.
3. A directory without a readable manifest, or with files that differ from it, is broken and is passed over.
4. A rank that gives up renames the partial directory before it removes it, so nobody can complete it any more.
5. Folders are made with mode 0700, files with 0600, in the folder that was opened and never through a link.
6. A path to read may be somebody else's. It must be a file or lead to one; a pipe or device is never opened or waited
   for.
"""

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from taskd.runtime.folders.ownfolder import OwnFolder, owner_of_new_files
from taskd.runtime.folders.regular import open_record
from taskd.wire.bounds import MOST_RANKS, Amount, Counter, Line, Name, OfJob
from taskd.wire.kinds import WorldRank
from taskd.wire.text import line

FORMAT = 1
MANIFEST = "taskd.json"
OUTLINE = "parts.msgpack"
INDEX = ".metadata"
MOST_MANIFEST_BYTES: Final = 64 << 20
"""Room for the files of a million ranks."""
MOST_INDEX_BYTES: Final = 1 << 30
MOST_OTHER_BYTES: Final = 4 << 30
"""The most that msgpack holds in one piece."""
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # a file system that cannot sync directories
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


FileName = Annotated[str, Meta(max_length=255, pattern=r"\A(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\.metadata)\Z")]
"""Name of a file in the checkpoint's own directory."""


class StateSet(msgspec.Struct, frozen=True):
    """Ranks that held the same part of the state.

    Attributes:
        name: name of that part, as `shards.name_of` gives it.
        ranks: their ranks in the job; lost ranks are left out.
        outline: the file that describes the part.
    """

    name: Name
    ranks: tuple[OfJob, ...]
    outline: FileName


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `taskd.json`, which describes its checkpoint.

    Attributes:
        identity: 14 hexadecimal digits that no other checkpoint has.
        written_at: time of writing, ISO 8601 in UTC.
        versions: versions of taskd, torch and Python.
        parts: the type of each part, by its name.
        files: size in bytes of every other file, by its name.
        sets: sets of ranks that held different parts of the state; none if all ranks held the same.
        job_size: ranks of the whole job, of which `world_size` have written; 0 if that is not recorded.
    """

    format: int
    step: Counter
    world_size: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    job_id: Name
    reason: Line
    identity: Annotated[str, Meta(pattern=r"\A[0-9a-f]{14}\Z")]
    written_at: Name
    versions: dict[Name, Name]
    parts: dict[Name, Name]
    files: dict[FileName, Counter]
    sets: tuple[StateSet, ...] = ()
    job_size: Amount = 0


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on the disk."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class CheckpointPath:
    """Paths for a new checkpoint: the final one, and the partial one; None if the checkpoint exists already."""

    final: Path
    partial: Path | None


def position_file(rank: WorldRank) -> str:
    """Return the name of the file that holds the random numbers and data position of `rank`."""
    return f"position-{rank}.bin"


def reserve(directory: Path, step: int, job_id: str, identity: str) -> CheckpointPath:
    """Find the name for step `step` of that job and make its partial directory. Raises OSError."""
    _make(directory)
    for final in _names(directory, step):
        if not os.path.lexists(final):
            break
        known = inspect(final)
        written = isinstance(known, Checkpoint) and (known.manifest.step, known.manifest.job_id) == (step, job_id)
        if written and _is_ours(final):
            return CheckpointPath(final, None)
    partial = directory / f".step-{step}.{identity}.partial"
    partial.mkdir(0o700)
    return CheckpointPath(final, partial)


def _names(directory: Path, step: int) -> Iterator[Path]:
    yield directory / f"step-{step}"
    yield from (directory / f"step-{step}.{number}" for number in itertools.count(1))


def _make(directory: Path) -> None:
    """Make a directory and its parents with mode 0700. `Path.mkdir` would leave the parents to the umask."""
    try:
        directory.mkdir(0o700)
    except FileNotFoundError:
        _make(directory.parent)
        _make(directory)
    except OSError:
        if not directory.is_dir():
            raise


def _is_ours(path: Path) -> bool:
    """Return whether the owner of our own new files owns it. Another user's checkpoint does not make the state safe."""
    return path.lstat().st_uid == owner_of_new_files(path.parent)


def complete(folder: OwnFolder, manifest: Manifest) -> Path:
    """Write the manifest, bring everything to the disk and rename the directory into place. Raises OSError.

    Returns:
        The final path. It is not the reserved one if that has been taken meanwhile.
    """
    write(folder, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    _sync_directory(folder.path)
    for final in _names(folder.path.parent, manifest.step):
        if os.path.lexists(final):
            continue
        try:
            folder.path.rename(final)
        except OSError:
            if not os.path.lexists(final):
                raise
        else:
            break
    _sync_directory(final.parent)
    return final


def drop(partial: Path, rank: WorldRank) -> None:
    """Remove a partial directory, if it is still there and not complete. Any rank may call it at any time."""
    gone = partial.with_name(f"{partial.stem}.{rank}.partial")
    with contextlib.suppress(OSError):
        partial.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def new_file(folder: OwnFolder, name: str) -> BinaryIO:
    """Make a file in the folder, for this user alone. Raises OSError, also if anything has that name."""
    return open(folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def write(folder: OwnFolder, name: str, data: bytes) -> None:
    """Write a new file and bring it to the disk. Raises OSError."""
    with new_file(folder, name) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also if the path is no file."""
    return open_record(path, _expect_file)


def read(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError, also if it has more than `most_bytes`."""
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(errno.EFBIG, f"{size_bytes} bytes, expected at most {most_bytes}", str(path))
        return file.read(size_bytes)


def _expect_file(known: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(known.st_mode):
        kind = _KINDS.get(stat.S_IFMT(known.st_mode), "a device")
        raise OSError(errno.EINVAL, f"found {kind}, expected a file", str(path))


def sizes(folder: OwnFolder, names: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each of these files. Raises OSError if one is missing."""
    return {name: os.stat(name, dir_fd=folder.descriptor).st_size for name in names}


def newest_first(directory: Path) -> list[Path]:
    """Return the paths in `directory` that are named like checkpoints, without reading them. Raises OSError."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # nothing has ever been written there
        return []
    matches = filter(None, map(_NAME.fullmatch, names))
    order = sorted(((int(match[1]), int(match[2] or 0), match[0]) for match in matches), reverse=True)
    return [directory / name for *_, name in order]


def inspect(path: Path) -> Checkpoint | str:
    """Return the checkpoint at `path`, or why it is none, in one line. It may have been written by anybody."""
    name = MANIFEST
    try:
        manifest = decode(read(path / MANIFEST, MOST_MANIFEST_BYTES))
        if isinstance(manifest, str):
            return manifest
        for name, size_bytes in manifest.files.items():
            known = (path / name).stat()
            _expect_file(known, path / name)
            if known.st_size != size_bytes:
                return f"{name} has {known.st_size} bytes, expected {size_bytes}"
    except OSError as error:
        return f"{name}: {error.strerror}"
    return Checkpoint(path, manifest)


def decode(data: bytes) -> Manifest | str:
    """Return the decoded manifest, or why it is none, in one line."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (ValueError, RecursionError) as error:
        return line(f"{MANIFEST}: {error}")
    if manifest.format != FORMAT:
        return f"it has format {manifest.format}, this taskd reads format {FORMAT}"
    return manifest


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
