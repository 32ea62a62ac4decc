"""Imports in a template: their output and their failures are logged, and neither is raised."""

import contextlib
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Final

logger = logging.getLogger(__name__)
_MAX_SHOWN_CHARS: Final = 300


def import_quietly(names: Iterable[str]) -> None:
    """Import modules as far as possible. Their output belongs to no rank, so it goes to the log."""
    for name in names:
        with _captured() as text:
            error = _try_import(name)
        if error is not None:
            # Compiled packages leave names in sys.modules that cannot be imported: no warning for the user.
            level = logging.DEBUG if name.startswith("_") else logging.WARNING
            logger.log(level, "a warm process cannot import %s (%r); ranks that need it do it themselves", name, error)
        if said := text():
            logger.info("importing %s printed: %s", name, said)


def _try_import(name: str) -> BaseException | None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a module may raise anything; some call sys.exit
        return error
    return None


@contextlib.contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    """Capture output to the descriptors 1 and 2, also from C code. Yields a function that returns it."""
    with tempfile.TemporaryFile() as file:
        kept = [(number, os.dup(number), os.get_inheritable(number)) for number in (1, 2)]
        said = ""
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield lambda: said
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # None if its descriptor was closed when Python started
                    stream.flush()
            for number, saved, inheritable in kept:
                os.dup2(saved, number, inheritable)
                os.close(saved)
            file.seek(0)
            said = file.read(_MAX_SHOWN_CHARS).decode(errors="replace").strip()
