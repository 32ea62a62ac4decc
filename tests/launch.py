"""Processes that a test starts, each in a session of its own, so that none survives the test whatever happens."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from tests.leaks import marked


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment with these changes; None removes a variable."""
    changed = {**os.environ, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def free_port() -> int:
    """Return a port of the loopback interface on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_as_by_an_error() -> None:
    """Let SIGTERM and SIGHUP end this process once, like an exception. For programs with jobs outside of a test."""

    def end(number: int, _frame: object) -> None:
        for again in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(again, signal.SIG_IGN)  # the started processes are being ended
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


class Launcher:
    """Starts processes and ends them all. Their output goes to files, and to the report of a failed test.

    Rules:

    1. `env` adds to this process's environment, or with None removes a variable.
    2. `end_all` kills the sessions of all processes that were not waited for. Then it kills all others with the test's
       mark: the workers of a torchrun have sessions of their own. The number of a process that was waited for may be
       another one's by then.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder = folder
        self._mark = mark
        self._outputs: dict[int, Path] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start `command`; "python" stands for this interpreter. stdout and stderr go to one file: see `output`."""
        arguments = [str(word) for word in command]
        if arguments[0] == "python":
            arguments[0] = sys.executable
        path = self._folder / f"output-{len(self._started)}.txt"
        with path.open("wb") as sink:
            process = subprocess.Popen(
                arguments,
                env=environment(env or {}),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self._outputs[process.pid] = path
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60,
    ) -> tuple[int, str]:
        """Start `command`, wait for its end, and return exit status and output. Raises TimeoutExpired."""
        process = self.start(command, env=env, cwd=cwd)
        return process.wait(timeout_s), self.output(process)

    def output(self, process: "subprocess.Popen[bytes]") -> str:
        """Return the output of the process and its children so far."""
        return self._outputs[process.pid].read_text(errors="replace")

    def end_all(self, report: TextIO | None = None) -> None:
        """Kill and reap running processes. Print every output to `report`, or to stdout for the report of a test."""
        for process in self._started:
            if process.returncode is None:  # its number is its own until it is waited for
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            command = " ".join(map(str, process.args if isinstance(process.args, list) else [process.args]))
            print(f"--- {command} -> {process.returncode}\n{self.output(process)}", file=report)
