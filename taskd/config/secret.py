"""The job's secret: from a variable, a key or a file, checked before it is used.

Rules:

1. Several places may give the secret; they must agree.
2. A file must be private: if group or others can read or write it, it holds no secret.
   (Space around the secret is not part of it, because editors add a newline.)
3. The secret appears in no error, no log and no repr.
4. The secret must be random. No check can detect a secret that a person made up, but a short one is rejected.
"""

import math
import stat
import string
from pathlib import Path
from typing import Final

from taskd.config import settings
from taskd.config.reading import Source
from taskd.errors import ConfigError

MIN_SECRET_BITS: Final = 128
_LEAST_DIFFERENT: Final = 8
_ALPHABETS: Final = (
    string.digits,
    string.hexdigits.lower(),
    string.hexdigits.upper(),
    "abcdefghijklmnopqrstuvwxyz234567",
)
_MAX_FILE_BYTES: Final = 4096


def read_secret(source: Source) -> bytes | None:
    """Return the job's secret, or None if none is given. Raises `ConfigError`."""
    given = _given(source)
    if len(set(given.values())) > 1:
        places = " and ".join(given)
        raise ConfigError(f"{places} give different secrets, expected one; remove all but one of them")
    for place, secret in given.items():
        bits = most_bits(secret)
        if bits < MIN_SECRET_BITS:
            raise ConfigError(
                f"{place}: found a secret of {len(secret)} bytes that holds {bits} random bits at most, expected "
                f"{MIN_SECRET_BITS} or more; make one with: openssl rand -hex 32"
            )
        return secret
    return None


def most_bits(secret: bytes) -> int:
    """Return an upper bound of the random bits in a secret, by its length and the alphabet that it is written in."""
    text = secret.decode("utf-8", "surrogateescape")
    if len(set(text)) < _LEAST_DIFFERENT:
        return len(set(text))
    return int(len(text) * math.log2(_alphabet_size(text)))


def _alphabet_size(text: str) -> int:
    for alphabet in _ALPHABETS:
        if set(text) <= set(alphabet):
            return len(set(alphabet))
    return 64


def _given(source: Source) -> dict[str, bytes]:
    """Return every place that gives a secret, with the secret."""
    given: dict[str, bytes] = {}
    for place in (Source({}, source.keys), Source(source.env)):
        text = place.text(settings.SECRET)
        if text is not None:
            given[place.label(settings.SECRET)] = text.encode("utf-8", "surrogateescape")
        path = place.path(settings.SECRET_FILE)
        if path is not None:
            given[f"{place.label(settings.SECRET_FILE)} ({path})"] = _from_file(path)
    return given


def _from_file(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        _check_mode(path, mode)
        content = path.read_bytes() if path.stat().st_size <= _MAX_FILE_BYTES else b""
    except OSError as error:
        raise ConfigError(
            f"the secret file {path} cannot be read ({error.strerror}), expected a private file; correct the path"
        ) from error
    if not content.strip():
        raise ConfigError(
            f"the secret file {path} is empty or larger than {_MAX_FILE_BYTES} bytes, expected one line; check the path"
        )
    return content.strip()


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"the secret file {path} is no regular file; give the path of a file")
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"the secret file {path} has mode {stat.S_IMODE(mode):04o}, expected one that is open to its owner alone; "
            f"run: chmod 600 {path} (in Kubernetes: defaultMode: 0400 on the secret's volume)"
        )
