"""A folder that is this user's alone, and the files in it.

Rules:

1. It is made with mode 0700. An existing one must be a folder, no link, of this user; it is closed to others, as
   OpenSSH and tmux do with theirs. Otherwise whoever made it first in a shared directory would own our files.
2. Its files are opened relative to its descriptor and never through a link. So nobody can change the path to them
   meanwhile. A pipe or device is no file.
3. Some file systems show other owners than there are (NFS for root). There, the owner of our own new files counts as
   us.
"""

import errno
import os
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from taskd.errors import FolderError

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OwnFolder:
    """An open folder. Raises `OSError` if it cannot be opened or made, `FolderError` if it is another user's."""

    def __init__(self, path: Path, within: "OwnFolder | None" = None, *, make: bool = True) -> None:
        """Open the folder; `make` it if need be. `within`: its parent folder, else its path is followed."""
        self.path = path
        self.descriptor: int
        name, at = (path, None) if within is None else (path.name, within.descriptor)
        new = make and _made(name, at)
        try:
            self.descriptor = os.open(name, _FLAGS, dir_fd=at)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise _foreign(path, "no folder, or a link to one") from error
        try:
            self._own(new=new)
        except BaseException:
            self.close()
            raise

    def open(self, name: str, flags: int) -> int:
        """Open a file in it; a new one has mode 0600. Raises `FolderError` for a link, a pipe or a device."""
        try:
            found = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            raise _foreign(self.path / name, "a link or a pipe") from error
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise _foreign(self.path / name, "no file")
        return found

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file, in place of the present one. No reader ever gets a part of it."""
        beside = self._beside(name, content)
        os.replace(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def offer(self, name: str, content: bytes) -> None:
        """Write a whole file, unless there is one already."""
        beside = self._beside(name, content)
        with suppress(FileExistsError):
            os.link(beside, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor, follow_symlinks=False)
        self.remove(beside)

    def names(self) -> list[str]:
        """Return the names of its files."""
        return os.listdir(self.descriptor)

    def changed_s(self, name: str) -> float:
        """Return when a file was changed last, in seconds of the wall clock; 0.0 if it has gone."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return 0.0

    def size(self, name: str) -> int:
        """Return the size of a file in bytes; 0 if it has gone."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, in place of the file that has it."""
        os.replace(name, other, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the folder. Files opened in it stay open."""
        os.close(self.descriptor)

    def _beside(self, name: str, content: bytes) -> str:
        beside = f".{name}.{os.getpid()}-{threading.get_ident()}"
        self.remove(beside)
        with open(self.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
        return beside

    def _own(self, *, new: bool) -> None:
        known = os.fstat(self.descriptor)
        if not new and known.st_uid not in (os.geteuid(), self._owner_of_ours()):
            raise _foreign(self.path, f"a folder of user {known.st_uid}")
        if known.st_mode & 0o077:
            os.chmod(self.descriptor, 0o700)

    def _owner_of_ours(self) -> int:
        """Return the owner of new files here; -1 if this process may make none."""
        try:
            return owner_of_new_files(Path(f"/proc/self/fd/{self.descriptor}"))
        except OSError:
            return -1


def owner_of_new_files(folder: Path) -> int:
    """Return the owner of files that this process makes there, another user where NFS maps root to nobody.

    Raises `OSError`.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid


def owner_of_folder(path: Path) -> int | None:
    """Return the owner of a folder; None if there is none, or something else, a link too."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_uid if stat.S_ISDIR(found.st_mode) else None


def _made(name: str | Path, at: int | None) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        return False
    return True


def _foreign(path: Path, what: str) -> FolderError:
    return FolderError(errno.EPERM, f"found {what}, expected one of user {os.geteuid()} alone; remove it", str(path))
