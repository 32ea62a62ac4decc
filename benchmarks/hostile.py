"""Neighbours of `soak --hostile`: a flood without the job's secret, and nonsense with it.

Both start when the job trains, and end before the job gets its last step. Each counts its own connections or messages
(`scripts/flood.py`, `scripts/nonsense.py`). When the manager ends, it records its refusals in its journal. A neighbour
that did less than half of its work makes the run worthless. So does a neighbour that the manager has not noticed.
"""

import json
import secrets
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.census import Counts, holdings, sockets
from benchmarks.job import BenchmarkError, Job, started, stock_environment
from taskd.runtime.links.identity import Role, keys_from_secret

JOB: Final = "default"
CONNECTIONS_A_SECOND: Final = 50
HELD: Final = 200
MESSAGES_A_SECOND: Final = 100
FILLING_S: Final = 30.0
"""Seconds after which each bounded resource that the neighbours can fill is full. Later growth is real growth."""
LEAST_SHARE: Final = 0.5
GONE_S: Final = 30.0
"""Time for which the manager may hold connections whose other end has gone, in seconds."""


class Hostile:
    """The two neighbours' processes, and the secret that one of them has."""

    def __init__(self, directory: Path, port: int, ranks: int, seed: int) -> None:
        self.secret_file = directory / "secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(secrets.token_hex(32))
        self._directory = directory
        self._port, self._ranks, self._seed = port, ranks, seed
        self._stack = ExitStack()
        self._jobs: dict[str, Job] = {}
        self._began_s = self._lasted_s = 0.0
        self.quiet: Counts = {}
        """Resources that the manager held before the neighbours started."""
        self._manager = 0

    @property
    def env(self) -> dict[str, str]:
        """Additional environment of the manager, the job, and the peer that has the secret."""
        return {"TASKD_SECRET_FILE": str(self.secret_file)}

    def begin(self, manager: int) -> None:
        """Start both neighbours. Return after they have been active for `FILLING_S`."""
        self._manager, self.quiet = manager, self.census(manager)
        self._began_s = time.monotonic()
        key = keys_from_secret(self.secret_file.read_bytes(), Role.MANAGER, JOB).public.decode()
        self._start("flood", CONNECTIONS_A_SECOND, HELD, key)
        self._start("nonsense", MESSAGES_A_SECOND, self._ranks, self._seed, **self.env)
        time.sleep(FILLING_S)

    def _start(self, name: str, *words: object, **env: str) -> None:
        all_words = [self._port, *words, self._counts(name)]
        command = [sys.executable, "-m", f"benchmarks.scripts.{name}", *map(str, all_words)]
        job = started(command, {**stock_environment(), **env}, self._directory / f"{name}.log")
        self._jobs[name] = self._stack.enter_context(job)

    def _counts(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def census(self, manager: int) -> Counts:
        """Return the manager's resources, with sockets apart: strangers' connections come and go."""
        held = sockets(manager)
        counted = holdings([manager])
        return {**counted, "fds": counted["fds"] - held, "sockets": held}

    def end(self) -> None:
        """End both neighbours, and wait until the manager has closed their connections.

        Raise `BenchmarkError` if one has ended before the job, or if the manager holds connections beyond `GONE_S`.
        """
        self._lasted_s = time.monotonic() - self._began_s
        for name, job in self._jobs.items():
            if job.ended:
                raise BenchmarkError(f"{name} has ended before the job, see {job.log}")
        self._stack.close()
        end_s = time.monotonic() + GONE_S
        while sockets(self._manager) > self.quiet["sockets"]:
            if time.monotonic() > end_s:
                raise BenchmarkError(f"the manager holds connections {GONE_S:g} s after their other end has gone")
            time.sleep(0.1)

    def close(self) -> None:
        """End both neighbours, however the run ends."""
        self._stack.close()

    def result(self, refused: dict[str, int]) -> dict[str, Any]:
        """Return the neighbours' connections and messages, and the refusals that the manager recorded (`refused`)."""
        flood, nonsense = (json.loads(self._counts(name).read_text()) for name in ("flood", "nonsense"))
        sent = nonsense["sent"]
        opened = {kind: count for kind, count in flood.items() if kind not in ("not opened", "ended by the manager")}
        return {
            "lasted_s": round(self._lasted_s, 1),
            "connections": flood,
            "connections_a_second": round(sum(opened.values()) / self._lasted_s, 1),
            "messages": sent,
            "messages_a_second": round((sum(sent.values()) - sent.get("not sent", 0)) / self._lasted_s, 1),
            "answers": nonsense["answers"],
            "refused": refused,
        }


def idle(result: dict[str, Any]) -> list[str]:
    """Return a text for each sign that the neighbours did not do their work, or that the manager did not notice."""
    found = []
    for key, wanted in (("connections_a_second", CONNECTIONS_A_SECOND), ("messages_a_second", MESSAGES_A_SECOND)):
        if result[key] < LEAST_SHARE * wanted:
            found.append(f"{key} {result[key]}, expected {wanted}")
    refused = [key for key in ("handshake", "identity") if not result["refused"].get(key)]
    answers = [key for key in ("Refusal", "Answer", "Directive") if not result["answers"].get(key)]
    found += [f"the manager has refused nothing as {key!r}" for key in refused]
    return [*found, *(f"no {key} came back" for key in answers)]
