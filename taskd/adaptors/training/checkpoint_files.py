"""The directories of checkpoints: how they are named, when one is complete, and how one comes into being.

Rules:

1. A checkpoint is written under a hidden name that ends in `.partial`. It is renamed to `step-N` once all its files are
   on the disk, with a manifest (`taskd.json`) that names each of them and its size.
2. What is there already is never replaced or removed: where the name is taken, it is `step-N.1` and so on.
3. A directory without a readable manifest, or whose files are not what the manifest says, is broken and is passed over.
4. Whoever gives up renames the partial directory before removing it: then nobody can complete it any more.
"""

import contextlib
import errno
import itertools
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

FORMAT = 1
MANIFEST = "taskd.json"
OUTLINE = "parts.msgpack"
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # a file system that cannot sync directories


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `taskd.json` says of its checkpoint.

    Attributes:
        identity: 14 hexadecimal digits that no other checkpoint has.
        written_at: time of writing, ISO 8601 in UTC.
        versions: of taskd, torch and Python.
        parts: the type of each part, by its name.
        files: size in bytes of every other file, by its name.
    """

    format: int
    step: int
    world_size: int
    job_id: str
    reason: str
    identity: str
    written_at: str
    versions: dict[str, str]
    parts: dict[str, str]
    files: dict[str, int]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on the disk."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is to be: its final name, and the partial one; None if it is there already."""

    final: Path
    partial: Path | None


def position_file(rank: int) -> str:
    """Name of the file that holds the random numbers and data position of `rank`."""
    return f"position-{rank}.bin"


def reserve(directory: Path, step: int, job_id: str, identity: str) -> Place:
    """Find the name for step `step` of that job and make its partial directory. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in itertools.chain([f"step-{step}"], (f"step-{step}.{number}" for number in itertools.count(1))):
        final = directory / name
        if not os.path.lexists(final):
            break
        known = inspect(final)
        if isinstance(known, Checkpoint) and (known.manifest.step, known.manifest.job_id) == (step, job_id):
            return Place(final, None)
    partial = directory / f".step-{step}.{identity}.partial"
    partial.mkdir()
    return Place(final, partial)


def complete(place: Path, final: Path, manifest: Manifest) -> None:
    """Write the manifest, bring everything to the disk and rename the directory into place. Raises OSError."""
    write(place / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    _sync_directory(place)
    place.rename(final)  # fails where a directory that is not empty has come to stand meanwhile
    _sync_directory(final.parent)


def drop(partial: Path, rank: int) -> None:
    """Remove a partial directory, if it is still there and not complete. Any rank may call it at any time."""
    gone = partial.with_name(f"{partial.stem}.{rank}.partial")
    with contextlib.suppress(OSError):
        partial.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """Write a new file and bring it to the disk. Raises OSError."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sizes(directory: Path, pattern: str) -> dict[str, int]:
    """Size in bytes of each file in `directory` whose name matches."""
    return {path.name: path.stat().st_size for path in directory.glob(pattern)}


def newest_first(directory: Path) -> list[Path]:
    """Return what is named like a checkpoint in `directory`, without looking into it. Raises OSError."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # nothing has ever been written there
        return []
    matches = filter(None, map(_NAME.fullmatch, names))
    order = sorted(((int(match[1]), int(match[2] or 0), match[0]) for match in matches), reverse=True)
    return [directory / name for *_, name in order]


def inspect(path: Path) -> Checkpoint | str:
    """Return the checkpoint at `path`, or why it is none."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        return f"{MANIFEST}: {error}"
    if manifest.format != FORMAT:
        return f"it has format {manifest.format}, this taskd reads format {FORMAT}"
    for name, size_bytes in manifest.files.items():
        try:
            found_bytes = (path / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found_bytes != size_bytes:
            return f"{name} has {found_bytes} bytes, expected {size_bytes}"
    return Checkpoint(path, manifest)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
