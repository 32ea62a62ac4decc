"""The promises of the README, tried with the torch of this environment: a line of JSON for each promise.

`scripts/compat.sh` makes an environment for each version of torch and calls `python -m tests.compat` in it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tests.e2e.job import no_outer_job
from tests.launch import environment

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600
SET_UP_WITH = "TASKD_TORCH"
"""Variable with pip's arguments for this torch. Without it, called scripts would set up missing parts with another."""
TORCHRUN = ("test_options_ends.py", "test_options_logs.py", "test_options_launch.py")
INJECTION = ("test_sed.py", "test_patch.py")
WITHOUT_SDK = "tests/e2e/test_scripts.py::test_a_script_with_its_own_checkpoints"


@dataclass(frozen=True)
class Line:
    """One promise and its result. `says` is for people."""

    torch: str
    name: str
    ok: bool
    says: str
    seconds: float


class NotKeptError(Exception):
    """A promise was not kept. The text describes the failure."""


def doctor() -> str:
    """Check that doctor finds everything in place."""
    report = json.loads(_run("taskd", "doctor", "--json", statuses=(0, 1)))
    if not report["healthy"]:
        raise NotKeptError("; ".join(one["found"] for one in report["findings"] if one["remedy"]))
    return next(str(one["found"]) for one in report["findings"] if one["subject"] == "fits torch")


def demo() -> str:
    """Check five kills, rank 0 among the victims, and the weights of the undisturbed run."""
    lines = [json.loads(line) for line in _run("bash", "scripts/demo.sh", "--json", "--seed", "13").splitlines()]
    result = lines[-1]["result"]
    totals = sorted(fault["total_ms"] for line in lines if (fault := line.get("fault")))
    if result["wrong"] or not result["weights_identical"] or len(totals) != 5:
        raise NotKeptError(f"{result}, {len(totals)} faults")
    return f"5 kills, weights identical; {totals[0]:.0f} to {totals[-1]:.0f} ms"


def restart() -> str:
    """Check that a script without the SDK is restarted as a whole, and goes on at its own checkpoint."""
    return _tests(WITHOUT_SDK)


def hang() -> str:
    """Check that a collective that one rank leaves out is reported with rank and operation, and recovered."""
    scenario = json.loads(_run(sys.executable, "-m", "tests.faults", "--json", "--only", "a collective skipped"))
    if not scenario["ok"]:
        raise NotKeptError("; ".join(scenario["wrong"]))
    return f"{scenario['kind']} {scenario['culprits']} after {scenario['diagnosis_s']} s"


def ladder() -> str:
    """Check that a job goes on smaller when a node is lost, and is whole again when the node is back."""
    last = json.loads(
        _run(sys.executable, "-m", "tests.ladder", "--json", "--only", "shrink and grow").splitlines()[-1]
    )
    if not last["ok"]:
        raise NotKeptError(str(last))
    return "shrunk and grown, weights identical"


def node_check() -> str:
    """Check that `--node-check` finds this node fit, and the job trains."""
    command = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--node-check",
        "tests/seams/job.py",
    )
    with tempfile.TemporaryDirectory(prefix="taskd-compat-") as folder:
        output = _run(sys.executable, *command, env={"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": folder})
        journal = next(Path(folder).rglob("journal.jsonl")).read_text().splitlines()
    checks = [entry for line in journal if (entry := json.loads(line))["event"] == "node check"]
    healths = [node["health"] for check in checks for node in check["nodes"].values()]
    if healths != ["healthy"] or "digest " not in output:
        raise NotKeptError(f"{healths}: {output[-1000:]}")
    return "the node is healthy, the job trains"


def torchrun() -> str:
    """Check that exit codes, signals, reports and log files are those of stock torchrun."""
    return _tests(*(f"tests/torchrun/{name}" for name in TORCHRUN))


def injection() -> str:
    """Check that the seed's sed line, its revertible form and torch's entry point put taskd in."""
    return _tests(*(f"tests/torchrun/{name}" for name in INJECTION))


PROMISES: dict[str, Callable[[], str]] = {
    "doctor": doctor,
    "demo": demo,
    "restart without the SDK": restart,
    "hang diagnosis": hang,
    "ladder": ladder,
    "node check": node_check,
    "torchrun's behaviour": torchrun,
    "sed line and entry point": injection,
}


def _tests(*names: str) -> str:
    """Run these tests. Return pytest's summary."""
    output = _run(sys.executable, "-m", "pytest", "-q", *names, statuses=(0, 1))
    summary = output.strip().splitlines()[-1].strip("= ")
    if "failed" in summary or "error" in summary or "passed" not in summary:
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        raise NotKeptError(f"{summary}: {', '.join(failed)}")
    return summary.partition(" in ")[0]


def _run(*command: str, statuses: tuple[int, ...] = (0,), env: dict[str, str] | None = None) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment({**no_outer_job(), "PATH": path, SET_UP_WITH: os.environ[SET_UP_WITH], **(env or {})}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode not in statuses:
        said = f"{done.stdout}\n{done.stderr or ''}".strip()
        raise NotKeptError(f"{' '.join(command)}: status {done.returncode}: {said[-1500:]}")
    return done.stdout


def _check_torch() -> None:
    """Fail if the torch of this environment has been replaced."""
    now = _run(sys.executable, "-c", "import torch; print(torch.__version__)").strip()
    if now != torch.__version__:
        raise NotKeptError(f"torch {now} was put in the place of {torch.__version__}")


def keep(only: str) -> Iterator[Line]:
    """Try each promise with `only` in its name."""
    for name, promise in PROMISES.items():
        if only not in name:
            continue
        began_s = time.monotonic()
        try:
            ok, says = True, promise()
            _check_torch()
        except (NotKeptError, subprocess.TimeoutExpired, ValueError, LookupError) as error:
            ok, says = False, f"{type(error).__name__}: {error}"
        yield Line(str(torch.__version__), name, ok, says, round(time.monotonic() - began_s, 1))


def main() -> int:
    """Try the promises. Return 0 if all are kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="only promises with this in their name")
    if SET_UP_WITH not in os.environ:
        parser.error(f"expected {SET_UP_WITH}, what this environment was set up with: call scripts/compat.sh")
    kept = True
    for line in keep(parser.parse_args().only):
        print(json.dumps(asdict(line)), flush=True)
        kept = kept and line.ok
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
