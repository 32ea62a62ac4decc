"""Recovery time of a job that loses one of its nodes: taskd with a waiting spare, and torchrun's elastic restart.

    python -m benchmarks.recovery --nodes 3 --pairs 2 --json

Method. The nodes are network namespaces of this machine (`tests/nodes.py`; needs root), with one torchrun and one rank
in each. There is one more node than the job needs. `scripts/train.py` trains until, at a random moment, all processes
of node 1 are killed at once. The time runs from the kill to the last rank's commit of the first step of the world
without the dead node. Node 0 stays: it has torchrun's rendezvous store, and taskd's manager.

- taskd: `torchrun --nnodes=N+1` with a manager of N places, so the last node waits as a spare. All settings are the
  defaults; nothing is saved. The kill comes when the spare has a warm process.
- torchrun: the c10d rendezvous with its defaults, `--max-restarts=3`, and `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`,
  without which a restart seldom works. Rank 0 saves a checkpoint after every step, and all ranks continue from it.
  `--stock-nnodes` sets the use of the node beyond N. With `N` (the default) it waits until a member is gone, as taskd's
  spare does. With `N:N+1` the job trains on all N+1 nodes and continues with N. A job that ends, or does not recover
  within `--limit-s`, counts with that limit. This is a lower bound, and the time is printed as ">LIMIT".

The script imports nothing but torch. A spare has run no rank. So further imports of a script take place after the
fault, unless `TASKD_PRELOAD` names them.

`detect_s` is the time from the kill until the manager detects a fault. `lost_s` is the time from the kill until the
manager decides to give the dead node's place away. After the pairs, node 1 of one more job under taskd loses its power:
no packet informs its peers (`power_off`). The last line has the medians. `ratio` is torchrun over taskd.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.job import (
    LOOK_S,
    ROOT,
    START_LIMIT_S,
    BenchmarkError,
    Job,
    Journal,
    StepLogs,
    fresh,
    say,
    stock_environment,
    taskd_environment,
    training,
)
from tests.nodes import Node, Nodes
from tests.nodes_space import NodesUnavailableError

VICTIM = 1
PORT = 29500
SECRET = "the benchmark's own: 0123456789"
RECORD_LIMIT_S = 10


@dataclass(frozen=True)
class Loss:
    """A node lost under taskd: the times in seconds, and whether the spare's process was warm."""

    taskd_s: float
    detect_s: float
    lost_s: float
    warm: bool
    phases_ms: Mapping[str, float]


class NodeLogs(StepLogs):
    """Logs of the ranks of a job on several nodes, where processes of different nodes may have the same pid.

    So a `start` line marks where the next process of a rank begins. No two processes of a rank write at once.
    """

    def all_at(self, step: int) -> bool:
        """Return whether the newest process of every rank has committed this step."""
        return all(step in steps for _, steps in map(self.newest, range(self._ranks)))

    def newest(self, rank: int) -> tuple[float, dict[int, float]]:
        """Return the start time of a rank's newest process, and the commit time of each of its steps."""
        started_s, steps = 0.0, dict[int, float]()
        for words in self._lines(rank):
            if words[0] == "start":
                started_s, steps = float(words[2]), {}
            else:
                steps[int(words[2])] = float(words[3])
        return started_s, steps

    def world_resumed_s(self, ranks: int, fresh: Collection[int], killed_s: float) -> float | None:
        """Return the time of the last rank's commit of the new world's first step; None if it is still missing.

        The new world is the one after the kill. It has `ranks` ranks, and each rank in `fresh` has a new process in it.
        """
        newest = [self.newest(rank) for rank in range(ranks)]
        if any(newest[rank][0] < killed_s for rank in fresh):
            return None
        commits = [{step: time_s for step, time_s in steps.items() if time_s > killed_s} for _, steps in newest]
        shared = set.intersection(*map(set, commits))
        return max(steps[min(shared)] for steps in commits) if shared else None


def measure_taskd(directory: Path, args: argparse.Namespace, chance: random.Random, *, power_off: bool = False) -> Loss:
    """Lose a node of a job under taskd that has a spare; return the times."""
    logs, journal = NodeLogs(directory / "steps", args.nodes), Journal(directory / "run")
    env = {**taskd_environment(directory / "run"), "TASKD_SECRET": SECRET, "TASKD_MANAGER": "node0:9601"}
    options = [f"--nnodes={args.nodes + 1}", "--master-addr=node0", f"--master-port={PORT}"]
    with Nodes(args.nodes + 1) as nodes:
        start_manager(nodes[0], directory, args.nodes, env)
        del env["TASKD_RUN_DIR"]  # each agent has its own, in its node
        words = training(logs, args.step_ms)
        torchruns = [start(node, directory, [*options, f"--node-rank={node.number}"], env, words) for node in nodes]
        job = Job(torchruns[0], directory)
        job.await_training(logs)
        spare = nodes[args.nodes]
        job.await_until(lambda: spare.name in waiting(journal) and has_standby(spare), "a warm spare", START_LIMIT_S)
        killed_s = lose(nodes[VICTIM], chance, power_off=power_off)
        resumed_s = await_world(job, partial(logs.world_resumed_s, args.nodes, (VICTIM,), killed_s), args.limit_s)
        if resumed_s is None:
            raise BenchmarkError(f"taskd: no step of all ranks within {args.limit_s:g} s, see {directory}")
        job.await_until(
            lambda: journal.last("recovered").get("detected_s", 0.0) > killed_s, "the journal's record", RECORD_LIMIT_S
        )
    record = journal.last("recovered")
    if record["restart"] or record["strategy"] != "recover":
        raise BenchmarkError(f"not recovered by the spare: {record['reason']}, see {directory}")
    detect_s, lost_s = moments(journal, record, killed_s)
    taskd_s = round(resumed_s - killed_s, 4)
    return Loss(taskd_s, detect_s, lost_s, record["warm"][str(VICTIM)], record["phases_ms"])


def moments(journal: Journal, record: Mapping[str, Any], killed_s: float) -> tuple[float, float]:
    """Return the seconds from the kill to the manager's detection, and to its order that replaces the node."""
    orders = [event["monotonic_s"] for event in journal.all("directive") if event["order"] == "pause"]
    after = [time_s for time_s in orders if killed_s < time_s]
    if not after:
        raise BenchmarkError(f"no order to pause after the kill, in {journal.all('directive')}")
    return round(min(record["detected_s"], *after) - killed_s, 4), round(after[-1] - killed_s, 4)


def measure_stock(directory: Path, args: argparse.Namespace, chance: random.Random) -> float | None:
    """Lose a node of a job under stock torchrun that has one more node than it needs.

    Return the seconds of the recovery; None if the job did not recover.
    """
    spare = args.stock_nnodes == str(args.nodes)
    members = args.nodes + (not spare)
    logs = NodeLogs(directory / "steps", members)
    env = {**stock_environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    options = [f"--nnodes={args.stock_nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=node0:{PORT}"]
    options += ["--rdzv-id=job", "--max-restarts=3"]
    words = training(logs, args.step_ms, "--checkpoint", directory / "checkpoint")
    with Nodes(args.nodes + 1) as nodes:
        torchruns = [start(node, directory, options, env, words) for node in list(nodes)[:members]]
        job = Job(torchruns[0], directory)
        job.await_training(logs)
        if spare:  # it comes when all places are taken, and only its debug log shows that it waits
            start(nodes[args.nodes], directory, options, {**env, "TORCH_LOGS": "+distributed"}, words)
            waits = directory / f"{nodes[args.nodes].name}.log"
            job.await_until(lambda: "to the redundancy list" in waits.read_text(), "a waiting node", START_LIMIT_S)
        killed_s = lose(nodes[VICTIM], chance)
        every_rank = range(args.nodes)
        resumed_s = await_world(job, partial(logs.world_resumed_s, args.nodes, every_rank, killed_s), args.limit_s)
    return None if resumed_s is None else round(resumed_s - killed_s, 4)


def only(env: Mapping[str, str]) -> dict[str, str | None]:
    """Return the environment of a node's process: `env`, and no variable of this process."""
    return {**dict.fromkeys(os.environ), **env, "TMPDIR": "/run/tmp", "GLOO_SOCKET_IFNAME": "eth0"}


def start(
    node: Node, directory: Path, options: Sequence[object], env: Mapping[str, str], words: Sequence[object]
) -> "subprocess.Popen[bytes]":
    """Start a node's torchrun, with one rank."""
    command = [Path(sys.executable).with_name("torchrun"), *options, "--nproc-per-node=1", *words]
    return node.start([str(word) for word in command], env=only(env), cwd=ROOT, output=directory / f"{node.name}.log")


def start_manager(node: Node, directory: Path, places: int, env: Mapping[str, str]) -> None:
    """Start taskd's manager."""
    program = directory / "manager.py"
    keys = {"job_id": None, "node_nums": places, "proc_per_node": 1}
    program.write_text(
        "import sys\n"
        "from taskd.api import init_taskd_manager, start_taskd_manager\n"
        f"sys.exit(0 if init_taskd_manager({keys}) and start_taskd_manager() else 1)\n"
    )
    node.start(["python", program], env=only(env), cwd=ROOT, output=directory / "manager.log")


def waiting(journal: Journal) -> set[str]:
    """Return the hosts of the nodes that have waited for a place."""
    return {event["host"] for event in journal.all("node waits")}


def has_standby(node: Node) -> bool:
    """Return whether the template of a node has forked: a standby has the template's command line."""
    commands = (Path(f"/proc/{pid}/cmdline") for pid in node.pids().values())
    count = 0
    for command in commands:
        with suppress(OSError):
            count += b"taskd.python.template" in command.read_bytes()
    return count > 1


def lose(node: Node, chance: random.Random, *, power_off: bool = False) -> float:
    """Lose a node at a random moment; return the time."""
    time.sleep(chance.uniform(0.2, 0.7))  # the random moment of the fault
    killed_s = time.monotonic()
    if power_off:
        node.power_off()
    else:
        node.kill_all()
    return killed_s


def await_world(job: Job, resumed_s: Callable[[], float | None], limit_s: float) -> float | None:
    """Wait until all ranks have committed a step of the new world; return that time.

    Return None if that did not happen within the limit, or if the job ended.
    """
    end_s = time.monotonic() + limit_s
    while (found_s := resumed_s()) is None and time.monotonic() < end_s and not job.ended:
        time.sleep(LOOK_S)  # files are the job's only reports
    return found_s


def compare_nodes(directory: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Measure stock and taskd `--pairs` times, then a node without power; print each, and the medians at the end."""
    stock, ours = [], []
    try:
        for pair in range(args.pairs):
            stock.append(measure_stock(fresh(directory, f"stock-{pair}"), args, chance))
            ours.append(measure_taskd(fresh(directory, f"taskd-{pair}"), args, chance))
            entry = {"pair": pair, "torchrun_s": shown_s(stock[-1], args.limit_s), **asdict(ours[-1])}
            say(args.json, entry, listed(entry))
        off = measure_taskd(fresh(directory, "power-off"), args, chance, power_off=True)
    except NodesUnavailableError as error:
        raise BenchmarkError(f"nodes cannot be made here: {error}; run it as root, on Linux with `ip`") from None
    say(args.json, {"power_off": asdict(off)}, f"power off: {listed(asdict(off))}")
    result = summary(stock, ours, off, args)
    say(args.json, result, listed(result))


def summary(stock: list[float | None], ours: list[Loss], off: Loss, args: argparse.Namespace) -> dict[str, object]:
    """Return the last line. A job that did not recover counts with the limit."""
    torchrun_s = statistics.median(args.limit_s if one_s is None else one_s for one_s in stock)
    taskd_s = statistics.median(one.taskd_s for one in ours)
    names = [name for name in ours[0].phases_ms if all(name in one.phases_ms for one in ours)]
    return {
        "ratio": round(torchrun_s / taskd_s, 1),
        "taskd_s": round(taskd_s, 4),
        "torchrun_s": shown_s(torchrun_s if torchrun_s < args.limit_s else None, args.limit_s),
        "detect_s": [one.detect_s for one in ours],
        "lost_s": [one.lost_s for one in ours],
        "power_off": asdict(off),
        "phases_ms": {name: round(statistics.median(one.phases_ms[name] for one in ours), 1) for name in names},
        "pairs": len(stock),
        "torchrun_all_s": [shown_s(one_s, args.limit_s) for one_s in stock],
        "taskd_all_s": [one.taskd_s for one in ours],
        "compared": f"one of {args.nodes} nodes killed: taskd with a spare, torchrun --nnodes={args.stock_nnodes} and "
        "a checkpoint each step",
    }


def shown_s(time_s: float | None, limit_s: float) -> float | str:
    """Return the seconds, or ">LIMIT" if there are none."""
    return f">{limit_s:g}" if time_s is None else round(time_s, 4)


def listed(entry: Mapping[str, object]) -> str:
    """Return a line's fields as text for people."""
    return ", ".join(f"{name} {value}" for name, value in entry.items())
