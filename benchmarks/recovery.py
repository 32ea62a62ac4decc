"""Recovery time after the kill of a rank: stock torchrun, taskd, and the floor, measured in turn.

    python -m benchmarks.recovery --pairs 5 --json
    python -m benchmarks.recovery --pairs 5 --at-once 2 --json
    python -m benchmarks.recovery --stock-defaults --runs 20 --json
    python -m benchmarks.recovery --nodes 3 --pairs 2 --json
    python -m benchmarks.recovery --rss-gib 1 --json

Method. `scripts/train.py` runs with 4 ranks by `torchrun --standalone`, first stock, then under taskd, `--pairs` times.
Once it trains (under taskd: once a warm process waits), a random rank gets SIGKILL at a random moment. The time runs
from the kill to the last rank's commit of the first step of the world that the killed rank came back to. A job under
taskd gets `--kills` kills, each once a warm process waits and has finished its preparations. Under stock torchrun the
script saves a checkpoint after every step and continues from it. Stock torchrun gets
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, without which it seldom recovers at all. Under taskd nothing is saved.

The floor is measured after each pair, with as many kills, by bare processes (see `floor.py`). For each kill a warm
process is in reserve, whose model is already built. A death is detected through a pidfd. The group is destroyed and
formed anew on a known store that the parent hosts. One all-reduce and one step follow. There is no agent, no manager,
no set-up of a script, and no transfer of state.

The last line has the medians. `ratio` is stock over taskd. `phases_ms` are taskd's own from its journal (`detect` is
the time from the kill to the manager's detection). `pause` and `replace` run side by side. `--stock-pairs` measures
stock torchrun in the first pairs only, or in none (0). The exit status is 1 if `over_floor` is above `--bound`.

`--at-once` also kills several random ranks together, once in each pair, in a further job under taskd. A warm process
and one in reserve wait there as by default. `at_once_s` is the median, `over_one` its ratio to `taskd_s`.

`--stock-defaults` leaves torchrun's defaults unchanged and counts the jobs that continued after their first restart.
taskd gets the same command.

`--nodes` kills a whole node of a job of several nodes instead (see `nodes.py`). `--rss-gib` kills and stops ranks that
hold this much memory, with the shim and without it (see `large.py`).
"""

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.floor import floors_s
from benchmarks.job import (
    BenchmarkError,
    Job,
    Journal,
    StepLogs,
    fresh,
    measured,
    say,
    started,
    stock_environment,
    taskd_environment,
    torchrun,
    training,
)
from benchmarks.large import compare_large
from benchmarks.nodes import compare_nodes

RECOVERY_LIMIT_S = 120
Words = Sequence[object]


@dataclass(frozen=True)
class Fault:
    """One kill: seconds to the next step of all ranks, and taskd's phases of it."""

    rank: int
    recovery_s: float
    phases_ms: Mapping[str, float] = field(default_factory=dict)


def measure_stock(directory: Path, args: argparse.Namespace, chance: random.Random) -> Fault:
    """Kill a rank of a job under stock torchrun; return the fault."""
    logs = StepLogs(directory / "steps", args.ranks)
    words = training(logs, args.step_ms, "--checkpoint", directory / "checkpoint")
    env = {**stock_environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with started(torchrun(words, args.ranks), env, directory / "job.log") as job:
        job.await_training(logs)
        victim, dead, killed_s = kill(logs, chance, args.ranks)
        return Fault(victim, await_resumed(job, logs, victim, dead, killed_s) - killed_s)


def measure_taskd(
    directory: Path, args: argparse.Namespace, chance: random.Random, kills: int, count: int = 1, more: Words = ()
) -> list[Fault]:
    """Kill `count` ranks of a job under taskd together, `kills` times; return the faults, each with its lowest rank.

    `more` are further words of the script's command line. The time that a process takes to build its objects does not
    count.
    """
    logs = StepLogs(directory / "steps", args.ranks)
    journal = Journal(directory / "run")
    words = training(logs, args.step_ms, *more)
    command = torchrun(words, args.ranks, "--standalone", "--max-restarts", max(3, kills))
    faults: list[Fault] = []
    with started(command, taskd_environment(directory / "run"), directory / "job.log") as job:
        job.await_training(logs)
        for number in range(1, kills + 1):
            job.await_warm(journal)
            victims, killed_s = kill_together(logs, chance, args.ranks, count)
            resumed_s = max(await_resumed(job, logs, victim, dead, killed_s) for victim, dead in victims.items())
            job.await_until(lambda: journal.count("recovered") >= number, "the journal's record", 10)  # noqa: B023
            record = journal.last("recovered")
            if record["restart"] or not all(record["warm"][str(victim)] for victim in victims):
                raise BenchmarkError(f"not recovered in place by warm processes: {record['reason']}, see {job.log}")
            phases = {"detect": round((record["detected_s"] - killed_s) * 1e3, 3), **record["phases_ms"]}
            built_s = max(logs.built_s(victim, logs.starts(victim)[-1]) for victim in victims)
            faults.append(Fault(min(victims), resumed_s - killed_s - built_s, phases))
    return faults


def kill(logs: StepLogs, chance: random.Random, ranks: int) -> tuple[int, int, float]:
    """Kill a random rank at a random moment; return the rank, its process, and the time."""
    victims, killed_s = kill_together(logs, chance, ranks, 1)
    [(victim, dead)] = victims.items()
    return victim, dead, killed_s


def kill_together(logs: StepLogs, chance: random.Random, ranks: int, count: int) -> tuple[dict[int, int], float]:
    """Kill `count` random ranks at a random moment; return the process of each, and the time."""
    time.sleep(chance.uniform(0.2, 0.7))  # the random moment of the fault
    victims = {rank: logs.starts(rank)[-1] for rank in chance.sample(range(ranks), count)}
    killed_s = time.monotonic()
    for dead in victims.values():
        os.kill(dead, signal.SIGKILL)
    return victims, killed_s


def await_resumed(job: Job, logs: StepLogs, victim: int, dead: int, killed_s: float) -> float:
    """Wait until all ranks have committed a step of the new world; return the time of the last commit."""
    what = f"a step of all ranks after the loss of rank {victim}"
    job.await_until(lambda: logs.resumed_s(victim, dead, killed_s) is not None, what, RECOVERY_LIMIT_S)
    resumed_s = logs.resumed_s(victim, dead, killed_s)
    assert resumed_s is not None
    return resumed_s


def compare(directory: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Measure stock, taskd and floor `--pairs` times; print each, and the medians in the last line."""
    stock: list[Fault] = []
    ours: list[list[Fault]] = []
    floors: list[list[float]] = []
    together: list[Fault] = []
    for pair in range(args.pairs):
        beside = pair < args.stock_pairs
        if beside:
            stock.append(measure_stock(fresh(directory, f"stock-{pair}"), args, chance))
        ours.append(measure_taskd(fresh(directory, f"taskd-{pair}"), args, chance, args.kills))
        floors.append(floors_s(directory / f"floor-{pair}", args.ranks, args.step_ms, chance, args.kills))
        if args.at_once:
            together += measure_taskd(fresh(directory, f"at-once-{pair}"), args, chance, 1, args.at_once)
        entry = {
            "pair": pair,
            **({"torchrun_s": round(stock[-1].recovery_s, 4)} if beside else {}),
            "taskd_s": [round(fault.recovery_s, 4) for fault in ours[-1]],
            "floor_s": [round(seconds, 4) for seconds in floors[-1]],
            "ranks": [fault.rank for fault in ours[-1]],
            "phases_ms": median_phases_ms(ours[-1]),
            **({"at_once_s": round(together[-1].recovery_s, 4)} if together else {}),
        }
        stock_s = f"torchrun {stock[-1].recovery_s:.2f} s, " if beside else ""
        times = f"{stock_s}taskd {median_s(ours[-1]):.3f} s, floor {statistics.median(floors[-1]):.3f} s"
        say(args.json, entry, f"pair {pair}: {times}; taskd's ms: {entry['phases_ms']}")
    result = {**summary(stock, ours, floors), **summary_at_once(list(chain(*ours)), together)}
    say(args.json, result, in_words(result))
    if args.bound is not None and result["over_floor"] > args.bound:
        raise BenchmarkError(f"found {result['over_floor']} times the floor, expected at most {args.bound:g}")


def in_words(result: dict[str, Any]) -> str:
    """Return the last line for people."""
    stock = f"torchrun {result['torchrun_s']} s ({result['ratio']} times), " if "ratio" in result else ""
    together = f"; several ranks at once {result['at_once_s']} s" if "at_once_s" in result else ""
    ours = f"taskd {result['taskd_s']} s, floor {result['floor_s']} s; {result['over_floor']} times the floor"
    return f"medians: {stock}{ours}{together}"


def median_s(faults: list[Fault]) -> float:
    """Return the median length of these recoveries."""
    return statistics.median(fault.recovery_s for fault in faults)


def median_phases_ms(faults: list[Fault]) -> dict[str, float]:
    """Return the median length of each phase of these recoveries."""
    return {name: round(statistics.median(one.phases_ms[name] for one in faults), 1) for name in faults[0].phases_ms}


def summary(stock: list[Fault], ours: list[list[Fault]], floors: list[list[float]]) -> dict[str, Any]:
    """Return the last line, from the faults of each job; without stock torchrun's part if it was not measured."""
    all_of_ours = list(chain(*ours))
    taskd_s, floor = median_s(all_of_ours), statistics.median(chain(*floors))
    result: dict[str, Any] = {}
    if stock:
        torchrun_s = median_s(stock)
        result = {
            "ratio": round(torchrun_s / taskd_s, 1),
            "torchrun_s": round(torchrun_s, 4),
            "torchrun_all_s": [round(fault.recovery_s, 3) for fault in stock],
        }
    return {
        **result,
        "taskd_s": round(taskd_s, 4),
        "floor_s": round(floor, 4),
        "over_floor": round(taskd_s / floor, 2),
        "phases_ms": median_phases_ms(all_of_ours),
        "pairs": len(ours),
        "taskd_all_s": [round(fault.recovery_s, 3) for fault in all_of_ours],
        "floor_all_s": [round(seconds, 3) for seconds in chain(*floors)],
        "over_floor_all": [
            round(median_s(one) / statistics.median(bare), 2) for one, bare in zip(ours, floors, strict=True)
        ],
    }


def summary_at_once(ours: list[Fault], together: list[Fault]) -> dict[str, object]:
    """Return the last line's part about ranks that were killed together; nothing if none were."""
    if not together:
        return {}
    at_once_s = median_s(together)
    return {
        "at_once_s": round(at_once_s, 4),
        "over_one": round(at_once_s / median_s(ours), 2),
        "at_once_all_s": [round(fault.recovery_s, 3) for fault in together],
    }


def count_first_restarts(directory: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Count the jobs that continue after their first restart, of `--runs` under stock torchrun and under taskd."""
    recovered = {"stock": 0, "taskd": 0}
    for run in range(args.runs):
        for kind in recovered:
            home = fresh(directory, f"{kind}-{run}")
            env = stock_environment() if kind == "stock" else taskd_environment(home / "run")
            went_on, text = try_once(home, env, args, chance)
            recovered[kind] += went_on
            say(args.json, {"run": run, "kind": kind, "recovered": went_on, "text": text}, f"run {run}, {kind}: {text}")
    result = {"stock_recovered": recovered["stock"], "taskd_recovered": recovered["taskd"], "runs": args.runs}
    text = f"recovered at the first restart: stock {recovered['stock']}, taskd {recovered['taskd']} of {args.runs}"
    say(args.json, result, text)


def try_once(home: Path, env: Mapping[str, str], args: argparse.Namespace, chance: random.Random) -> tuple[bool, str]:
    """Kill one rank; return whether all ranks continued, with at most one new process each, and a text about it."""
    logs = StepLogs(home / "steps", args.ranks)
    words = training(logs, args.step_ms, "--checkpoint", home / "checkpoint")
    with started(torchrun(words, args.ranks), env, home / "job.log") as job:
        job.await_training(logs)
        victim, dead, killed_s = kill(logs, chance, args.ranks)

        def restarts() -> int:
            return max(len(logs.starts(rank)) for rank in range(args.ranks)) - 1

        def resumed_s() -> float | None:
            return logs.resumed_s(victim, dead, killed_s)

        try:
            job.await_until(lambda: restarts() > 1 or resumed_s() is not None, "a step of all ranks", args.limit_s)
        except BenchmarkError as error:
            return False, str(error)
        end_s = resumed_s()
        if restarts() > 1 or end_s is None:
            return False, f"the first restart failed, see {job.log}"
        return True, f"went on after {end_s - killed_s:.2f} s"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, help="how often stock and taskd in turn (default 5, with --nodes 2)")
    parser.add_argument("--stock-pairs", type=int, help="pairs in which stock torchrun is measured too (default: all)")
    parser.add_argument("--kills", type=int, default=4, help="in each job under taskd (default 4)")
    parser.add_argument("--bound", type=float, help="exit with 1 if a recovery takes more than this times the floor")
    parser.add_argument("--at-once", type=int, default=0, metavar="RANKS", help="also kill so many ranks together")
    parser.add_argument("--stock-defaults", action="store_true", help="count first restarts that worked instead")
    parser.add_argument("--runs", type=int, default=20, help="of --stock-defaults (default 20)")
    parser.add_argument("--nodes", type=int, help="kill one of so many nodes instead, one rank each (needs root)")
    parser.add_argument(
        "--stock-nnodes", metavar="N|MIN:MAX", help="torchrun's --nnodes with --nodes (default N: one more waits)"
    )
    parser.add_argument("--rss-gib", type=float, help="large ranks instead, with the shim and without it")
    parser.add_argument("--no-hang", action="store_true", help="with --rss-gib: kill only, stop nobody")
    parser.add_argument(
        "--limit-s", type=float, help="a job that takes longer has not recovered (default 40, with --nodes 120)"
    )
    parser.add_argument("--ranks", type=int, help="(default 4; with --rss-gib not more than cores, and 2 at least)")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(words)
    if args.nodes is not None and args.nodes < 2:
        parser.error(f"found --nodes {args.nodes}, expected at least 2: one of them is killed")
    if args.rss_gib is not None and args.rss_gib <= 0:
        parser.error(f"found --rss-gib {args.rss_gib:g}, expected a size above 0")
    if args.ranks is not None and args.ranks < 2:
        parser.error(f"found --ranks {args.ranks}, expected at least 2: one of them is killed")
    if args.kills < 1:
        parser.error(f"found --kills {args.kills}, expected at least 1")
    if args.at_once and not 2 <= args.at_once < (args.ranks or 4):
        parser.error(f"found --at-once {args.at_once}, expected 2 at least, and fewer than there are ranks")
    args.ranks = args.ranks or (4 if args.rss_gib is None else max(2, min(4, len(os.sched_getaffinity(0)))))
    args.pairs = args.pairs or (5 if args.nodes is None else 2)
    args.stock_pairs = args.pairs if args.stock_pairs is None else args.stock_pairs
    args.limit_s = args.limit_s or (40 if args.nodes is None else 120)
    args.stock_nnodes = args.stock_nnodes or str(args.nodes)
    return args


def main(words: list[str] | None = None) -> int:
    """Measure; return 1 if the event to measure did not happen."""
    args = arguments(words)
    measure = compare
    if args.nodes is not None:
        measure = compare_nodes
    elif args.rss_gib is not None:
        measure = compare_large
    elif args.stock_defaults:
        measure = count_first_restarts
    return measured(partial(measure, args=args, chance=random.Random(args.seed)))


if __name__ == "__main__":
    sys.exit(main())
