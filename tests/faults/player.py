"""Plays one scenario: starts its job, waits for the fault and its effects, and judges."""

import json
import os
import uuid
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import leaks
from tests.faults.job import RANKS, FaultJob, TwoNodesJob
from tests.faults.judge import Seen, judge
from tests.faults.scenarios import Scenario
from tests.launch import Launcher
from tests.nodes import Nodes

END_S = 60.0


@dataclass(frozen=True)
class Played:
    """A scenario and its result."""

    scenario: Scenario
    seen: Seen
    wrong: list[str]

    @property
    def line(self) -> dict[str, Any]:
        """Line of JSON."""
        diagnosis, took_s = self.seen.decisive or {}, self.seen.diagnosis_s
        recovery = self.seen.recoveries[0] if self.seen.recoveries else None
        phases = recovery["phases_ms"] if recovery else {}
        took_ms = phases.get("total", phases.get("started"))
        return {
            "name": self.scenario.name,
            "ok": not self.wrong,
            "kind": diagnosis.get("kind"),
            "culprits": diagnosis.get("culprits"),
            "diagnosis_s": None if took_s is None else round(took_s, 3),
            "limit_s": round(self.scenario.expected.limit_s, 3),
            "recovered_ms": round(took_ms) if took_ms is not None else None,
            "strategy": recovery["strategy"] if recovery else None,
            "step_ms": self.scenario.step_ms,
            "sentence": self.seen.diagnoses[-1]["sentence"] if self.seen.diagnoses else None,
            "wrong": self.wrong,
        }


def play(scenario: Scenario, folder: Path, native: Path) -> Played:
    """Play one scenario, with its files in `folder`. Raises `NodesUnavailableError` and `CgroupUnavailableError`."""
    mark = uuid.uuid4().hex
    outer = os.environ.get(leaks.MARK)
    os.environ[leaks.MARK] = mark
    try:
        with ExitStack() as stack:
            cgroup = stack.enter_context(scenario.cgroup(f"taskd-{mark[:8]}"))
            launcher = Launcher(folder, mark)
            stack.callback(_end, launcher, folder)
            plan = scenario.plan(folder, cgroup)
            if scenario.nodes == 1:
                job = FaultJob(launcher, folder, plan)
            else:
                job = TwoNodesJob(launcher, folder, plan, stack.enter_context(Nodes(scenario.nodes)))
            return _observe(scenario, job, native)
    finally:
        os.environ.pop(leaks.MARK)
        if outer is not None:
            os.environ[leaks.MARK] = outer


def _observe(scenario: Scenario, job: FaultJob, native: Path) -> Played:
    wrong: list[str] = []
    status: int | None = None
    try:
        job.begin(native)
        wrong += scenario.play(job)
        job.await_strike()
        status = job.end(END_S)
    except AssertionError as error:
        wrong.append(str(error).splitlines()[0])
    seen = Seen(list(job.events), job.plan.struck_s(), status, job.outcome())
    wrong += judge(scenario.expected, seen, job.plan.steps, RANKS)
    return Played(scenario, seen, wrong)


def _end(launcher: Launcher, folder: Path) -> None:
    """End all processes. The report of their outputs goes to the scenario's files."""
    with (folder / "report.txt").open("w") as report, redirect_stdout(report):
        launcher.end_all()


def evidence(played: Played, folder: Path) -> dict[str, Any]:
    """Return the manager's recorded evidence for its diagnosis; an empty dict without one."""
    named = [event["evidence"] for event in played.seen.diagnoses[-1:] if event.get("evidence")]
    paths = [path for name in named for path in folder.glob(f"run/*/{name}")]
    return json.loads(paths[0].read_text()) if paths else {}
