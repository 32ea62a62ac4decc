"""`taskd manager` in a process of its own, which is ready when it has printed its address."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.launch import environment

LIMIT_S = 30


@dataclass
class Served:
    """A manager that listens. `said` is its one line."""

    process: "subprocess.Popen[str]"
    said: str

    @property
    def address(self) -> str:
        """Address at which it listens."""
        return self.said.split()[-1]

    def end(self, signal_number: int) -> tuple[int, str, str]:
        """Signal the manager. Return its exit status, and its further output on stdout and stderr."""
        self.process.send_signal(signal_number)
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


@contextmanager
def serving(*words: str, env: Mapping[str, str | None]) -> Iterator[Served]:
    """Start a manager, and ensure that it has ended."""
    command = [sys.executable, "-m", "taskd", "manager", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(env), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said, process.communicate(timeout=LIMIT_S)
            yield Served(process, said)
        finally:
            process.kill()
