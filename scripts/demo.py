"""Train with and without killed ranks, and compare the weights. Called by `demo.sh`, which prepares the environment.

The job starts as in the seed's scripts: `python manager.py &` on this machine, then torchrun with `LD_PRELOAD` and
`TASKD_PROCESS_ENABLE=on`. The printed facts come from the job's journal and from the outcome that the script writes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RANKS = 4
PORT = 29511
LIMIT_S = 300
MIN_ACCURACY = 0.95


class DemoError(Exception):
    """Failed demonstration: a promised result did not appear."""


class Journal:
    """Reader that follows the job's journal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.events: list[dict[str, Any]] = []

    def last(self, event: str) -> dict[str, Any]:
        """Return the newest event of that name, {} if there is none yet."""
        self._follow()
        return next((entry for entry in reversed(self.events) if entry["event"] == event), {})

    def count(self, event: str) -> int:
        """Return the number of events of that name."""
        self._follow()
        return sum(entry["event"] == event for entry in self.events)

    def _follow(self) -> None:
        if not self._path.exists():
            return
        with self._path.open() as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith("\n"):
                    break
                self.events.append(json.loads(line))
                self._read += len(line.encode())


def await_until(condition: Any, what: str, job: "subprocess.Popen[bytes]", limit_s: float = LIMIT_S) -> None:
    """Check every 10 ms until the condition holds. The journal is a file, so there is nothing to block on."""
    end = time.monotonic() + limit_s
    while not condition():
        if job.poll() is not None:
            raise DemoError(f"the job ended (status {job.returncode}) while the demo waited for {what}")
        if time.monotonic() > end:
            raise DemoError(f"{what}: not within {limit_s:g} s")
        time.sleep(0.01)


@contextmanager
def started(command: list[str], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a process in its own session, with its output in a file. It is ended at the latest with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def torchrun(out: Path, steps: int, step_ms: float) -> list[str]:
    """Return the command line of torchrun: the seed's DISTRIBUTED_ARGS, then the example."""
    distributed = f"--nproc_per_node {RANKS} --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port {PORT}"
    script = [str(ROOT / "examples" / "digits_ddp.py"), "--steps", str(steps), "--step-ms", f"{step_ms:g}"]
    return ["torchrun", *distributed.split(), "--max_restarts", "32767", *script, "--out", str(out)]


def base_environment() -> dict[str, str]:
    """Return this process's environment without the variables that an earlier job may have left in it."""
    foreign = ("TASKD_", "TORCHELASTIC_", "MINDX_", "LD_PRELOAD", "MASTER_", "RANK", "WORLD_SIZE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**env, "OMP_NUM_THREADS": "1"}


def run_undisturbed(directory: Path, steps: int) -> dict[str, Any]:
    """Run the same job under plain torchrun, with taskd off, and return its outcome: the weights to reach."""
    out = directory / "undisturbed.json"
    with started(torchrun(out, steps, 0), base_environment(), directory / "undisturbed.log") as job:
        if job.wait(LIMIT_S) != 0:
            raise DemoError(f"the undisturbed run failed, see {directory / 'undisturbed.log'}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def run_with_faults(directory: Path, args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the job under taskd and kill its ranks; return its outcome, and one record per fault."""
    gate = subprocess.run(
        """pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}'""",
        shell=True, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    env = {
        **base_environment(),
        "MASTER_ADDR": "127.0.0.1",
        "TASKD_PROCESS_ENABLE": "on",
        "TASKD_RUN_DIR": str(directory / "run"),
        "LD_PRELOAD": gate,
    }
    journal = Journal(directory / "run" / "default" / "journal.jsonl")
    out = directory / "faults.json"
    chance = random.Random(args.seed)
    victims = [0, *(chance.randrange(RANKS) for _ in range(args.faults - 1))]
    chance.shuffle(victims)
    with started([sys.executable, str(ROOT / "examples" / "manager.py")], env, directory / "manager.log") as manager:
        with started(torchrun(out, args.steps, args.step_ms), env, directory / "faults.log") as job:
            faults = [kill(journal, job, victim, chance.uniform(0.2, 1.0), args) for victim in victims]
            if job.wait(LIMIT_S) != 0:
                raise DemoError(f"the job ended with status {job.returncode}, see {directory / 'faults.log'}")
        if manager.wait(30) != 0:
            raise DemoError(f"the manager ended with status {manager.returncode}, see {directory / 'manager.log'}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result, faults


def kill(
    journal: Journal, job: "subprocess.Popen[bytes]", rank: int, delay_s: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Kill one rank once training runs and a warm standby waits; follow the recovery to the next committed step."""
    await_until(lambda: journal.count("first step") > 0, "the first step", job)
    await_until(lambda: journal.last("standbys").get("count", 0) > 0, "a warm standby process", job)
    time.sleep(delay_s)  # the random moment of the fault
    before = {int(r): pid for r, pid in journal.last("processes")["pids"].items()}
    done = journal.count("recovered")
    killed_s = time.monotonic()
    os.kill(before[rank], signal.SIGKILL)
    await_until(lambda: journal.count("recovered") > done, f"the recovery of rank {rank}", job, 60)
    record = journal.last("recovered")
    if record["restart"]:
        raise DemoError(f"rank {rank}: the whole job was restarted: {record['reason']}")
    phases = record["phases_ms"]
    kept = {int(r): pid for r, pid in record["kept"].items()}
    fault = {
        "rank": rank,
        "step": record["target_step"],
        "detect_ms": round((record["detected_s"] - killed_s) * 1e3, 2),
        **{f"{name}_ms": phases[name] for name in ("pause", "replace", "rebuild", "restore", "first_step")},
        "total_ms": round((record["detected_s"] - killed_s) * 1e3 + phases["total"], 2),
        "warm": record["warm"][str(rank)],
        "kept": kept,
        "all_others_kept": kept == {r: pid for r, pid in before.items() if r != rank},
    }
    say(args, {"fault": fault}, describe(fault))
    return fault


def describe(fault: dict[str, Any]) -> str:
    """Return one line of text for one fault."""
    names = ("detect", "pause", "replace", "rebuild", "restore", "first_step", "total")
    phases = " ".join(f"{name} {fault[f'{name}_ms']:.1f}" for name in names)
    kept = " ".join(f"{rank}:{pid}" for rank, pid in fault["kept"].items())
    return f"rank {fault['rank']} killed, resumed at step {fault['step']}; ms: {phases}; PIDs kept {kept}"


def say(args: argparse.Namespace, entry: dict[str, Any], text: str) -> None:
    """Print one line of output, as JSON or for people."""
    print(json.dumps(entry) if args.json else text, flush=True)


def judge(reference: dict[str, Any], result: dict[str, Any], faults: list[dict[str, Any]]) -> list[str]:
    """Return every broken promise of the demonstration."""
    wrong = [f"rank {f['rank']}: another process was restarted too" for f in faults if not f["all_others_kept"]]
    if result["sha256"] != reference["sha256"] or not result["ranks_equal"]:
        wrong.append("the weights differ from those of the undisturbed run")
    if result["accuracy"] <= MIN_ACCURACY:
        wrong.append(f"accuracy {result['accuracy']:.4f} is not above {MIN_ACCURACY}")
    return wrong


def main() -> int:
    """Run the demonstration; return 0 only if every promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the faults")
    parser.add_argument("--faults", type=int, default=5, help="ranks to kill (default 5)")
    parser.add_argument("--steps", type=int, default=700, help="training steps (default 700)")
    parser.add_argument("--step-ms", type=float, default=30, help="least duration of a step (default 30)")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="taskd-demo-"))
    try:
        say(args, {"seed": args.seed, "directory": str(directory)}, f"seed {args.seed}, logs in {directory}")
        reference = run_undisturbed(directory, args.steps)
        text = f"undisturbed run under plain torchrun: accuracy {reference['accuracy']:.4f}"
        say(args, {"undisturbed": reference}, text)
        result, faults = run_with_faults(directory, args)
    except DemoError as error:
        print(f"demo: {error} (logs in {directory})", file=sys.stderr)
        return 1
    wrong = judge(reference, result, faults)
    same = result["sha256"] == reference["sha256"] and result["ranks_equal"]
    summary = {"accuracy": result["accuracy"], "weights_identical": same, "sha256": result["sha256"], "wrong": wrong}
    say(
        args,
        {"result": summary},
        f"accuracy {result['accuracy']:.4f} after {len(faults)} faults\n"
        f"weights identical to the fault-free run: {'yes' if same else 'NO'} (sha256 {result['sha256']})",
    )
    for reason in wrong:
        print(f"demo: {reason}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
