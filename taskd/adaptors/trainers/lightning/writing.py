"""The writing of a training outside of itself: lines of its loggers, and files of its checkpoints.

Rules:

1. Each line of each logger has a number. A line that was started before a fault is not written again.
2. A checkpoint that was started before a fault is written again, to the same file. Lightning would take the file of the
   first time for another checkpoint's, and write a second one beside it.
3. A new process of rank 0 continues the writing of the former one. Until it has joined its loggers do nothing: some
   would remove existing files at their start.
"""

import csv
import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from taskd.adaptors.trainers.marks import PLACES, Marks

_log = logging.getLogger(__name__)
_LOGGERS: Final = 31
_SAVES: Final = _LOGGERS
_PATHS: Final = PLACES - _LOGGERS - 1
"""Number of the newest checkpoints that are identified by their paths."""
_NAMES: Final = ("_version", "_id", "_run_id", "_experiment_id", "_experiment_key")
"""Attributes by which loggers identify the run that they write on."""


class Lines:
    """The lines of all loggers of one training.

    Attributes:
        counts: of each logger, how many it was given.
    """

    def __init__(self, loggers: Sequence[Any], marks: Marks) -> None:
        self._loggers = loggers[:_LOGGERS]
        self._marks = marks
        self.counts = [0] * len(self._loggers)
        for place, logger in enumerate(self._loggers):
            vars(logger)["log_metrics"] = self._guarded(place, logger.log_metrics)

    def names(self) -> list[Any]:
        """Return the attributes by which each logger identifies its run."""
        plain = (str, int, type(None))
        return [[[n, v] for n, v in vars(one).items() if n in _NAMES and isinstance(v, plain)] for one in self._loggers]

    def go_on(self, names: Sequence[Any]) -> None:
        """Make the loggers of this new process continue the former one's writing."""
        for place, (logger, known) in enumerate(zip(self._loggers, names, strict=False)):
            vars(logger).update(known)
            if getattr(logger, "_experiment", None) is not None:
                logger._experiment = None
            begun = self._marks[place]
            written = _write_on(logger) if hasattr(logger, "_flush_logs_every_n_steps") else None
            if written is not None:
                lost = self.counts[place] - written
                if lost > 0:
                    _log.warning("%d lines of %s were not on disk when its process died", lost, logger.log_dir)
                self._marks[place] = max(min(begun, written), self.counts[place])

    def end(self) -> None:
        """Leave the loggers as they were."""
        for logger in self._loggers:
            vars(logger).pop("log_metrics", None)

    def _guarded(self, place: int, write: Callable[..., Any]) -> Callable[..., Any]:
        def log_metrics(*args: Any, **options: Any) -> Any:
            self.counts[place] = number = self.counts[place] + 1
            if number <= self._marks[place]:
                return None
            self._marks[place] = number
            return write(*args, **options)

        return log_metrics


class Files:
    """The checkpoints of one training, and links to them; `count`: how many were started, as of the commit or later."""

    def __init__(self, callbacks: Sequence[Any], marks: Marks) -> None:
        self._marks = marks
        self._callbacks = [one for one in callbacks if hasattr(one, "file_exists") and hasattr(one, "_fs")]
        self.count = 0
        for callback in self._callbacks:
            vars(callback)["file_exists"] = self._guarded(callback, callback.file_exists)
            if hasattr(callback, "_link_checkpoint"):
                vars(callback)["_link_checkpoint"] = self._counted(callback._link_checkpoint)

    def begin(self, path: Any) -> None:
        """Record a checkpoint that is about to be written there."""
        self.count += 1
        self._marks[self._place(self.count)] = _number(path)
        self._marks[_SAVES] = max(self._marks[_SAVES], self.count)

    def end(self) -> None:
        """Leave the callbacks as they were."""
        for callback in self._callbacks:
            for name in ("file_exists", "_link_checkpoint"):
                vars(callback).pop(name, None)

    def _guarded(self, callback: Any, ask: Callable[..., bool]) -> Callable[..., bool]:
        def file_exists(filepath: Any, trainer: Any) -> bool:
            following = self.count + 1
            if self._marks[_SAVES] < following or self._marks[self._place(following)] != _number(filepath):
                return ask(filepath, trainer)
            own = callback._fs
            callback._fs = _Nothing()
            try:
                return ask(filepath, trainer)
            finally:
                callback._fs = own

        return file_exists

    def _counted(self, link: Callable[..., None]) -> Callable[..., None]:
        def link_checkpoint(trainer: Any, filepath: Any, linkpath: Any) -> None:
            self.begin(linkpath)
            link(trainer, filepath, linkpath)

        return link_checkpoint

    @staticmethod
    def _place(number: int) -> int:
        return _SAVES + 1 + number % _PATHS


class _Nothing:
    """A file system without that file, which is the one that is written now."""

    def exists(self, _path: Any) -> bool:
        return False


def _number(path: Any) -> int:
    return int.from_bytes(hashlib.blake2b(os.fspath(path).encode(), digest_size=7).digest(), "little")


def _write_on(logger: Any) -> int | None:
    """Make a logger of CSV files continue its file, without half a line at its end; return its lines."""
    path = os.path.join(logger.log_dir, "metrics.csv")
    if not os.path.isfile(path):
        return None
    with open(path, "rb+") as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            file.truncate(len(whole))
    rows = list(csv.reader(whole.decode(errors="replace").splitlines()))
    aside = f"{path}.kept"
    os.rename(path, aside)  # the writer removes existing files at its start
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that the folder has files already
            writer = logger.experiment
    finally:
        os.rename(aside, path)
    writer.metrics_keys = list(rows[0]) if rows else []
    return max(0, len(rows) - 1)
