"""False alarms of taskd in jobs whose healthy ranks do unannounced work other than steps.

    python -m benchmarks.soak --foreign --virtual --json
    python -m benchmarks.soak --foreign --hours 2 --json

Method. Now and then the jobs do other work than steps, as `works.py` generates it: uploads by another program, numpy, a
server that answers late, sleep, a loop in Python, garbage collection, compilation, checkpoints, evaluations. While rank
0 does this work, the others wait in a barrier.

*Virtual*: the manager's core with four ranks, 24 hours for each of `--seeds` seeds. At each query, the ranks report the
evidence that such work shows from outside. The timeout is 10 minutes, the default.

*Real*: `scripts/foreign.py` with 4 ranks under taskd, with everything switched on, for `--hours` hours.

The last line counts the reported diagnoses (`told`), those of them that counted as proven, the replaced ranks, and the
spent restarts. The exit status is 1 unless the last three are 0.
"""

import argparse
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from benchmarks.job import (
    ROOT,
    START_LIMIT_S,
    BenchmarkError,
    Journal,
    StepLogs,
    measured,
    say,
    started,
    taskd_environment,
    torchrun,
)
from benchmarks.works import EVALUATION, LONGEST_S, Work, works
from taskd.core.diagnosis.evidence import Clocks, Evidence, RunState, Standing, Stillness
from taskd.core.recovery import Phase
from taskd.wire.messages import Progress
from tests.core.driver import Job
from tests.core.scenarios import base, but, entered

SCRIPT: Final = ROOT / "benchmarks" / "scripts" / "foreign.py"
RANKS: Final = 4
STEP_S: Final = 0.5
BEAT_S: Final = 0.25
VIRTUAL_S: Final = 86_400.0


def _waits(what: str) -> Stillness:
    return Stillness(1.0, main=what, waits=(f"its main thread waits for {what}",), io_bytes=0, disks_idle=False)


_RUNS: Final = Stillness(1.0, main="nothing: it runs", ran=("its main thread ran (98% of a core)",), share=0.98)
_LOOKS: Final = {
    "upload": _waits("a child process"),
    "numpy": _RUNS,
    "socket": _waits("a socket"),
    "sleep": _waits("a sleep"),
    "loop": _RUNS,
    "collect": _RUNS,
    "compile": _waits("a child process"),
    "save": replace(_waits("a write"), io_bytes=1 << 20),
    EVALUATION: _RUNS,
}
"""State of a rank's threads during each kind of work."""


def evidence_report(work: Work, step: int, age_s: float) -> dict[int, Evidence]:
    """Return the evidence of all ranks while this work is done, `age_s` seconds after its start."""
    found = {}
    for rank in range(RANKS):
        if rank and work.kind != EVALUATION:
            found[rank] = but(entered(base(rank, RANKS)), step=step)
            continue
        known = base(rank, RANKS)
        state = {"save": RunState.UNINTERRUPTIBLE, "upload": RunState.SLEEPING}.get(work.kind, RunState.RUNNING)
        process = replace(known.process, state=state, state_s=age_s, still=_LOOKS[work.kind]) if known.process else None
        answers = Clocks(0.1, age_s if work.kind == "collect" else 0.0, 0.0 if work.kind == "loop" else age_s)
        found[rank] = but(known, process=process, clocks=answers, step=step, standing=Standing.TRAINING)
    return found


class Day:
    """One job in virtual time."""

    def __init__(self, seed: int) -> None:
        self.job = Job(per_node=RANKS, max_restarts=3).up()
        self.seen: Counter[str] = Counter()
        self._seed = seed

    def play(self, until_s: float) -> Counter[str]:
        """Play the job for `until_s` seconds; return the counts of its events."""
        job = self.job
        job.progress = Progress(step=6, age_s=0.0)
        begun_s = job.now_s
        for work in takewhile(lambda _: job.now_s - begun_s < until_s, works(self._seed)):
            while job.progress.step < 6 + work.after:
                job.train(1, STEP_S)
                self.seen["steps"] += 1
            self._do(work)
        self.seen["told"] = len({told.fault for told in job.diagnoses})
        self.seen["proven"] = sum(told.diagnosis.proven for told in job.diagnoses)
        self.seen["replaced"] = sum(job.incarnations)
        self.seen["restarts"] = job.core.job.budget.spent if job.core.job.budget is not None else 0
        return self.seen

    def _do(self, work: Work) -> None:
        job = self.job
        self.seen[work.kind] += 1
        end_s, begun_s = job.now_s + work.seconds, job.now_s
        while job.now_s < end_s:
            job.silent_for(min(BEAT_S, end_s - job.now_s))
            if job.at(Phase.SUSPECTING) and job.progress is not None:
                job.hear_evidence(0, evidence_report(work, job.progress.step, job.now_s - begun_s))
            if job.at(Phase.PAUSING) or job.at(Phase.STOPPED):
                raise BenchmarkError(f"after step {work.after}: {work} was interrupted: {job.diagnoses[-1].diagnosis}")


def virtual(_directory: Path, args: argparse.Namespace) -> None:
    """Play a job for each seed, in virtual time."""
    seen: Counter[str] = Counter()
    begun_s = time.monotonic()
    for seed in range(args.seed, args.seed + args.seeds):
        found = Day(seed).play(VIRTUAL_S)
        say(args.json, {"seed": seed, **found}, f"seed {seed}: {dict(found)}")
        seen.update(found)
    _tell(args, {"mode": "virtual", "hours": args.seeds * VIRTUAL_S / 3600}, seen, time.monotonic() - begun_s)


def real(directory: Path, args: argparse.Namespace) -> None:
    """Run a job under taskd; count its diagnoses and recoveries."""
    logs, run_dir = StepLogs(directory / "steps", args.ranks), directory / "run"
    words = [SCRIPT, "--record", logs.directory, "--step-ms", args.step_ms, "--seed", args.seed]
    journal, seen = Journal(run_dir), Counter[str]()
    env = {**taskd_environment(run_dir), "PYTHONPATH": str(ROOT)}
    with started(torchrun([*words], args.ranks), env, directory / "job.log") as job:
        job.await_until(lambda: logs.all_at(1), "the first step", START_LIMIT_S + LONGEST_S)
        begun_s, told = time.monotonic(), 0
        while time.monotonic() - begun_s < args.hours * 3600:
            if job.ended:
                raise BenchmarkError(f"the job has ended, see {job.log}")
            for diagnosis in journal.all("diagnosis")[told:]:
                told += 1
                say(args.json, diagnosis, f"after {time.monotonic() - begun_s:.0f} s: {diagnosis['sentence']}")
            time.sleep(1)
        lasted_s = time.monotonic() - begun_s
        diagnoses, recovered = journal.all("diagnosis"), journal.all("recovered")  # before we end the job
        last = min(max(logs.steps(rank, logs.starts(rank)[-1])) for rank in range(args.ranks))
    seen.update(work.kind for work in takewhile(lambda work: work.after < last, works(args.seed)))
    seen["steps"] = last
    seen["told"] = len({diagnosis["fault"] for diagnosis in diagnoses})
    seen["proven"] = sum(bool(diagnosis["proven"]) for diagnosis in diagnoses)
    seen["replaced"] = sum(len(record["replaced"]) for record in recovered)
    seen["restarts"] = len(recovered)
    _tell(args, {"mode": "real", "hours": round(lasted_s / 3600, 3)}, seen, lasted_s)


def _tell(args: argparse.Namespace, result: dict[str, Any], seen: Counter[str], took_s: float) -> None:
    counts = {name: seen[name] for name in ("told", "proven", "replaced", "restarts")}
    result |= {**dict(sorted(seen.items())), **counts, "took_s": round(took_s, 1)}
    say(args.json, result, "\n".join(f"{name}: {value}" for name, value in result.items()))
    if seen["proven"] or seen["replaced"] or seen["restarts"]:
        raise BenchmarkError("a healthy rank was blamed")


def soak_foreign(args: argparse.Namespace) -> int:
    """Run the virtual jobs or the real one; return 1 if a healthy rank was blamed."""
    return measured(partial(virtual if args.virtual else real, args=args))
