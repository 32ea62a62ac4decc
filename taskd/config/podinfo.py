"""Annotations of the pod that this process runs in, from the file that the downward API writes.

Rules:

1. The file is read only for settings that neither a key nor a variable gives.
2. A missing file means no annotations, because most jobs run in no pod. A warning is logged only if `TASKD_PODINFO`
   names a file that does not exist. An empty annotation counts as none, like an empty variable.
3. An unreadable file may forbid strategies. It is an error if nothing else gives the strategies. Otherwise nothing
   dangerous can be in it, and a warning is enough.
4. Each line is `key="value"`, with the value quoted as in Go. Values of other keys are not parsed: they are not ours.
"""

import logging
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from taskd.config import settings
from taskd.config.reading import Annotation, Source
from taskd.errors import ConfigError

logger = logging.getLogger(__name__)

_ESCAPE: Final = re.compile(r"""\\(?:([abfnrtv\\"])|x([0-9a-f]{2})|u([0-9a-f]{4})|U(000[0-9a-f]{5}|0010[0-9a-f]{4}))""")
_QUOTED: Final = re.compile(rf'"((?:[^"\\]|{_ESCAPE.pattern})*)"')
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_ANNOTATED: Final = tuple(setting for setting in settings.SETTINGS if setting.annotation is not None)


def with_annotations(source: Source) -> Source:
    """Return the source with the pod's annotations added. Keys and variables come before them. Raises `ConfigError`."""
    wanted = {setting.annotation for setting in _ANNOTATED if not source.gives(setting)}
    if not wanted:
        return source
    path = source.required_path(settings.PODINFO)
    found = {key: _unquoted(annotation) for key, annotation in _lines(_read(source, path), path) if key in wanted}
    return replace(source, annotations={key: annotation for key, annotation in found.items() if annotation.value})


def _read(source: Source, path: Path) -> str:
    """Return the text of the file; empty if there is no file, or if an unreadable file is no error.

    Raises `ConfigError` if the file cannot be read and nothing else gives the strategies.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("no regular file")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if source.gives(settings.PODINFO):
            logger.warning("%s names %s, which does not exist: no annotations are read", settings.PODINFO.name, path)
        return ""
    except (OSError, UnicodeDecodeError) as error:
        refusal = ConfigError(
            f"the pod's annotations in {path} cannot be read ({error}), expected the downward API's file; make it "
            f"readable, name another one with {settings.PODINFO.name}, or set {settings.STRATEGY.name}"
        )
        if not source.gives(settings.STRATEGY):
            raise refusal from error
        logger.warning("%s", refusal)
        return ""


def _lines(text: str, path: Path) -> Iterator[tuple[str, Annotation]]:
    """Yield the key and the quoted value of each line that has both."""
    for number, line in enumerate(text.split("\n"), 1):
        key, equals, quoted = line.partition("=")
        if equals:
            yield key.strip(), Annotation(quoted.strip(), f"the annotation {key.strip()} ({path}, line {number})")


def _unquoted(annotation: Annotation) -> Annotation:
    quoted = _QUOTED.fullmatch(annotation.value)
    if quoted is None:
        raise ConfigError(
            f"{annotation.place}: found {annotation.value[:80]!r}, expected a value in double quotes as the downward "
            "API writes it; let Kubernetes write the file, or correct the line"
        )
    return replace(annotation, value=_ESCAPE.sub(_unescaped, quoted[1]))


def _unescaped(escape: re.Match[str]) -> str:
    letter, *codes = escape.groups()
    return _LETTERS[letter] if letter is not None else chr(int(next(code for code in codes if code), 16))
