"""The secret of a job whose manager and agents are on one machine, if the user has given none.

Loopback belongs to every user of a machine. Without a secret, a neighbour who listens first is the manager, and ends
the job. So both sides take a secret from a file that only this user can read (as Jupyter takes its token). The first
process makes it. It stays, for all jobs of this user that share the run directory.
"""

import os
import re
import secrets
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from taskd.config.address import Address
from taskd.config.security import Security
from taskd.errors import SecretError
from taskd.runtime.folders.jobfolder import open_folder
from taskd.runtime.folders.ownfolder import OwnFolder

_FOLDER: Final = "own"
_FILE: Final = "loopback"
_BYTES: Final = 32
_DIGITS: Final = 2 * _BYTES
_WHOLE: Final = re.compile(rb"[0-9a-f]{%d}" % _DIGITS)


def secured(security: Security, address: Address, run_dir: Path) -> Security:
    """Return the security to use at this address.

    Raises `SecretError` if the machine's own secret cannot be read or made.
    """
    if security.secret is not None or security.insecure or not address.is_loopback:
        return security
    folder = run_dir / f"{_FOLDER}-{os.getuid()}"
    try:
        with closing(open_folder(folder)) as own:
            return replace(security, secret=_read_or_make(own))
    except OSError as error:
        where = error.filename or folder
        raise SecretError(
            f"no secret was given for {address}, and {where} cannot hold one by which the processes of this user know "
            f"each other ({error.strerror}); set TASKD_SECRET (make one with: openssl rand -hex 32), or TASKD_RUN_DIR "
            "to a directory of this user"
        ) from error


def _read_or_make(folder: OwnFolder) -> bytes:
    with suppress(FileNotFoundError):
        return _read(folder)
    folder.offer(_FILE, secrets.token_hex(_BYTES).encode())
    return _read(folder)  # perhaps that of a faster process


def _read(folder: OwnFolder) -> bytes:
    with open(folder.open(_FILE, os.O_RDONLY), "rb") as file:
        found = file.read(_DIGITS + 1)
    if _WHOLE.fullmatch(found) is None:
        what = "a damaged secret" if found else "no secret"
        raise SecretError(
            f"{folder.path / _FILE}: found {what} ({len(found)} bytes), expected {_DIGITS} hexadecimal digits; end the "
            "jobs of this user on this machine, remove the file, and start again: the next job makes a new one"
        )
    return found
