"""A process with a black box, and the collector that watches it."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from taskd.core.diagnosis.endings import ending_of
from taskd.core.diagnosis.evidence import Evidence, RunState
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.box.blackbox import Box
from taskd.wire.kinds import JobRank, NodeRank
from tests.launch import Launcher
from tests.runtime.local import PROGRAMS, ROOT

LIMIT_S = 20.0


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.002)


class Rank:
    """Process with a box, and the collector that watches it."""

    def __init__(self, launcher: Launcher, box: Box, body: str, before: str = "") -> None:
        command: list[str | Path] = ["python", PROGRAMS / "watched.py", box.path, before, body]
        self.process = launcher.start(command, env={"PYTHONPATH": str(ROOT)})
        self.pid, self.box, self.collector = self.process.pid, box, EvidenceCollector()
        self.collector.begin(JobRank(3), self.pid, 0)
        until(lambda: box.read().step == 41, "it is up")

    def take(self, status: int | None = None) -> Evidence:
        ending = None if status is None else ending_of(status)
        return self.collector.take(JobRank(3), self.pid, self.box, node=NodeRank(1), ending=ending)

    def until(self, condition: Callable[[Evidence], object]) -> Evidence:
        found: list[Evidence] = []

        def holds() -> object:
            found[:] = [self.take()]
            return condition(found[0])

        until(holds, str(condition))
        return found[0]

    def state(self, state: RunState) -> Evidence:
        return self.until(lambda known: known.process is not None and known.process.state is state)

    def end(self, status: int) -> Evidence:
        """Return the evidence as an agent collects it: the process is a zombie then."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return self.take(status)


Start = Callable[..., Rank]
