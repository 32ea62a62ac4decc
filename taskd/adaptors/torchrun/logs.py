"""Log files of the second and later incarnations of a rank, and torchrun's tee behind them.

Rules:

1. torch opens a rank's files for writing from the start, so a new incarnation would erase the dead one's output. It
   gets its own directory, where torch puts that of a restart: `…/attempt_N/<rank>/` is followed by `attempt_N+1`. Where
   the directories are not torch's own, it is `inc_K` beside the first one's files.
2. The same streams are redirected, tee'd and filtered as torchrun's options specify for the first incarnation.
3. The follower of a dead incarnation reads to the end of its file and ends; none outlives two incarnations.
"""

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from taskd.adaptors.seams.launcher import TAILS
from taskd.runtime.agent.ports import Logs
from taskd.wire.kinds import LocalRank

_ATTEMPT = re.compile(r"attempt_(\d+)")


class RankLogs:
    """Log files of new incarnations in one context of torchrun."""

    def __init__(self, context: SubprocessContext) -> None:
        self._context = context
        self._stdouts = dict(context.stdouts)
        self._stderrs = dict(context.stderrs)
        self._error_files = dict(context.error_files)
        self._tails = TAILS.find().use
        self._first_tails = self._tails.of(context)
        self._latest: dict[LocalRank, list[TailLog]] = {}
        self._ended: list[TailLog] = []

    def open(self, local_rank: LocalRank, incarnation: int) -> Logs:
        """Make the directory of a new incarnation and let the tee follow it. Call under the host's lock."""
        directory = self._make_directory(local_rank, incarnation)
        logs = Logs(
            stdout=_in(directory, self._stdouts[local_rank]),
            stderr=_in(directory, self._stderrs[local_rank]),
            error_file=_in(directory, self._error_files[local_rank]) if directory else None,
        )
        self._end_tails(local_rank)
        self._latest[local_rank] = [
            tail for first in self._first_tails if (tail := self._follow(first, local_rank, logs))
        ]
        self._tails.add(self._context, self._latest[local_rank])
        return logs

    @property
    def has_ended(self) -> bool:
        """True while a follower of a dead incarnation still reads."""
        return bool(self._ended)

    def collect(self) -> None:
        """Remove followers that have finished. Call in torchrun's own thread, which walks the same list."""
        for tail in [tail for tail in self._ended if all(future.done() for future in tail._futs)]:
            tail.stop()
            self._ended.remove(tail)
            self._tails.remove(self._context, tail)

    def _make_directory(self, local_rank: LocalRank, incarnation: int) -> Path | None:
        files = (self._error_files[local_rank], self._stdouts[local_rank], self._stderrs[local_rank])
        real = next((file for file in files if file and file != os.devnull), None)
        if real is None:
            return None
        for directory in _after(Path(real).parent, incarnation):
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
            return directory
        return None

    def _end_tails(self, local_rank: LocalRank) -> None:
        for tail in self._latest.pop(local_rank, []):
            tail._finished_events[local_rank].set()
            self._ended.append(tail)
        for tail in self._first_tails:
            if local_rank in tail._finished_events:
                tail._finished_events[local_rank].set()

    def _follow(self, first: TailLog, local_rank: LocalRank, logs: Logs) -> TailLog | None:
        """Start a follower like `first`, for the file that replaces the one that `first` reads; None without one."""
        followed = first._log_files.get(local_rank)
        if followed is None:
            return None
        file = logs.stdout if followed == self._stdouts[local_rank] else logs.stderr
        if not file or file == os.devnull:
            return None
        tail = TailLog(
            first._name,
            {local_rank: file},
            first._dst,
            first._log_line_prefixes,
            **self._tails.options(first),
        )
        return tail.start()


def _after(first: Path, incarnation: int) -> Iterator[Path]:
    """Return directories for the files of later incarnations, if the first one's lie in `first`."""
    attempt = _ATTEMPT.fullmatch(first.parent.name)
    if attempt is None:
        return (first / f"inc_{number}" for number in count(incarnation))
    run, number = first.parent.parent, int(attempt[1]) + 1
    return (run / f"attempt_{later}" / first.name for later in count(number))


def spare_earlier(specs: LogsSpecs, attempt: int) -> None:
    """Move the directory of an attempt out of the way: torch empties it before it starts the attempt."""
    run = getattr(specs, "_run_log_dir", None)
    taken = Path(run or os.devnull) / f"attempt_{attempt}"
    if taken.is_dir():
        free = (taken.with_name(f"{taken.name}.{number}") for number in count(1))
        taken.rename(next(directory for directory in free if not directory.exists()))


def _in(directory: Path | None, file: str) -> str | None:
    """Return the counterpart of `file` in `directory`, None for torchrun's own stream (which torch writes as "")."""
    if not file:
        return None
    if file == os.devnull or directory is None:
        return file
    return str(directory / Path(file).name)
