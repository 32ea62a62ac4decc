"""Log files of the second and later incarnations of a rank, and torchrun's tee behind them.

Rules:

1. torch opens a rank's files for writing from the start, so that a new incarnation would erase what the dead one said:
   each incarnation gets a directory of its own beside the first one's files, `…/attempt_N/<rank>/inc_K/`.
2. The same streams are redirected, tee'd and filtered as torchrun was told for the first incarnation.
3. The follower of a dead incarnation reads to the end of its file and ends; none outlives two incarnations.
"""

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from taskd.runtime.ports import Logs


class RankLogs:
    """Opens the files of new incarnations in one context of torchrun."""

    def __init__(self, context: SubprocessContext) -> None:
        self._context = context
        self._stdouts = dict(context.stdouts)
        self._stderrs = dict(context.stderrs)
        self._error_files = dict(context.error_files)
        self._first_tails = tuple(context._tail_logs)
        self._latest: dict[int, list[TailLog]] = {}
        self._ended: list[TailLog] = []

    def open(self, local_rank: int, incarnation: int) -> Logs:
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
        self._context._tail_logs.extend(self._latest[local_rank])
        return logs

    def collect(self) -> None:
        """Let go of followers that have come to their end. Call in torchrun's own thread, which walks the same list."""
        for tail in [tail for tail in self._ended if all(future.done() for future in tail._futs)]:
            tail.stop()
            self._ended.remove(tail)
            self._context._tail_logs.remove(tail)

    def _make_directory(self, local_rank: int, incarnation: int) -> Path | None:
        files = (self._error_files[local_rank], self._stdouts[local_rank], self._stderrs[local_rank])
        real = next((file for file in files if file and file != os.devnull), None)
        if real is None:
            return None
        parent, name, attempt = Path(real).parent, f"inc_{incarnation}", 1
        while True:
            directory = parent / (name if attempt == 1 else f"{name}.{attempt}")
            try:
                directory.mkdir()
            except FileExistsError:
                attempt += 1
            else:
                return directory

    def _end_tails(self, local_rank: int) -> None:
        for tail in self._latest.pop(local_rank, []):
            tail._finished_events[local_rank].set()
            self._ended.append(tail)
        for tail in self._first_tails:
            if local_rank in tail._finished_events:
                tail._finished_events[local_rank].set()

    def _follow(self, first: TailLog, local_rank: int, logs: Logs) -> TailLog | None:
        """A follower like `first`, for the file that has taken the place of the one that `first` reads."""
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
            log_line_filter=first._log_line_filter,
        )
        return tail.start()


def _in(directory: Path | None, file: str) -> str | None:
    """The counterpart of `file` in `directory`; torch writes "" for its own stream."""
    if not file:
        return None
    if file == os.devnull or directory is None:
        return file
    return str(directory / Path(file).name)
