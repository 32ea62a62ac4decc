"""Makes the traces.

`python -m tests.data.make --recorded` runs real jobs here (two cores, some minutes) and replaces the files beside this
one. `--synthetic FOLDER` writes some of the traces that tests generate each time, for people to read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from taskd.core.stragglers.detector import Step
from taskd.wire.kinds import JobRank
from tests.data.recorded import HERE, RECORDED, Trace, write
from tests.data.synthetic import Case, Family, Fault, rows
from tests.e2e.job import Job
from tests.launch import Launcher

LIMIT_S = 240.0
ROOT = HERE.parents[1]


def record(trace: Trace) -> list[list[Step]]:
    """Run the job of this trace, and return the steps that its ranks have recorded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = Launcher(folder, "")
        job = Job(launcher, folder, trace.ranks)
        environment = {key: value for key, value in job.environment().items() if value is not None}
        plan = {"folder": name, "steps": trace.steps, "vary": trace.vary, "slow": trace.slow, "load": trace.load}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={trace.ranks}"]
        program = [str(HERE / "recording.py"), json.dumps({**plan, "onset": trace.onset})]
        subprocess.run([*command, *program], env=_within(environment), check=True, timeout=LIMIT_S, cwd=ROOT)
        return _merged(folder.glob("rank-*.csv"))


def _within(environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **environment}


def _merged(files: Iterable[Path]) -> list[list[Step]]:
    by_step: dict[int, list[Step]] = {}
    count = 0
    for file in files:
        count += 1
        for line in file.read_text().split():
            rank, step, own_us, waited_us, data_us, work = map(int, line.split(","))
            one = Step(JobRank(rank), step, own_us / 1e6, waited_us / 1e6, data_us / 1e6, float(work))
            by_step.setdefault(step, []).append(one)
    return [sorted(row) for _, row in sorted(by_step.items()) if len(row) == count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recorded", action="store_true", help="run the jobs again")
    parser.add_argument("--synthetic", type=Path, metavar="FOLDER", help="write a trace of each family here")
    chosen = parser.parse_args()
    for trace in RECORDED if chosen.recorded else ():
        print(trace.name, write(record(trace), HERE / f"{trace.name}.csv.gz"), "bytes", flush=True)
    if chosen.synthetic is not None:
        chosen.synthetic.mkdir(parents=True, exist_ok=True)
        for family in Family:
            case = Case(family, 8, 400, 1, Fault.RANK, 0.1, 200)
            write(rows(case), chosen.synthetic / f"{family.name.lower()}-{case.victims[0]}-at-200.csv.gz")


if __name__ == "__main__":
    main()
