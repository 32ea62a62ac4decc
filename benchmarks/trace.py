"""Goodput of a large job under the faults of a published run: taskd's real core on virtual time, and plain restarts.

    python -m benchmarks.trace --gpus 16384 --days 54 --json
    python -m benchmarks.trace --mix llama3 --spares 0 --seeds 3
    python -m benchmarks.trace --core-cost 2048

Method. Faults are drawn by seed from the published mix (`data/fault_mix.csv`) and played against `taskd.core.recovery`:
reports go in, directives come out, and nodes obey them (`trace_job.py`). The time of each part is in
`data/phase_times.csv`, measured where possible and assumed otherwise, with its source. `--set` changes one. The same
faults are played under checkpoint and restart (`trace_restart.py`). docs/goodput.md has the definitions, the results
and their limits.

The core gets one slot rank for each node, which stands for the node's 8 GPUs. It gets `--places` of these, fewer than
the job has nodes, to save time (2,048 take 2 minutes a seed). Its decisions do not depend on their number. The
manager's cost at full size is measured by `--core-cost` and charged as `manager_s`.

The last line has the means over the seeds. `*_range` are the smallest and the largest value.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict
from itertools import count
from typing import Any

from benchmarks.job import say
from benchmarks.trace_faults import Fault, draw, read_mix
from benchmarks.trace_job import Job
from benchmarks.trace_meter import WASTE, Meter
from benchmarks.trace_restart import play
from benchmarks.trace_times import Times, read_times
from taskd.core.policy import BudgetPolicy, Deadlines, Policy, Strategy, StrategyPolicy
from taskd.core.recovery import Phase, Publish, Recovery
from taskd.wire.codec import decode_from_agent, encode
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Ledger, NodeStatus, Order, RankStatus, Stage

DAY_S = 86_400.0
GPUS_PER_NODE = 8


def play_taskd(
    faults: list[Fault], times: Times, length_s: float, interval_s: float, args: argparse.Namespace
) -> tuple[Meter, Job]:
    """Play the faults against the core; return the booked time and the job."""
    places = min(args.places, max(2, args.gpus // GPUS_PER_NODE))
    policy = Policy(
        job_id="trace",
        node_count=places,
        ranks_per_node=1,
        strategies=StrategyPolicy(
            allowed=tuple(Strategy(word) for word in args.recover_strategy.split(",")),
            dump_to=b"/shelf" if "dump" in args.recover_strategy else b"",
        ),
        budget=BudgetPolicy(max_restarts=args.max_restarts),
        deadlines=Deadlines(wait_node_s=args.wait_reschedule_timeout),
    )
    meter = Meter(times, interval_s, times.overhead_share)
    job = Job(policy, times, meter, args.spares)
    job.run(faults, length_s)
    return meter, job


def play_seed(seed: int, times: Times, args: argparse.Namespace) -> dict[str, Any]:
    """Play one seed under taskd and under plain restarts; return the line of output."""
    length_s = args.days * DAY_S
    causes = read_mix(args.mix)
    mtbf_s = 3600 / (sum(cause.per_gpu_hour for cause in causes) * args.gpus * args.rate)
    interval_s = args.checkpoint_interval_s or times.checkpoint_interval_s(mtbf_s)
    faults = draw(causes, args.gpus * args.rate, length_s, seed)
    began_s = time.perf_counter()
    meter, job = play_taskd(faults, times, length_s, interval_s, args)
    core_s = time.perf_counter() - began_s
    restart = play(faults, times, length_s, interval_s)
    counts = Counter(fault.cause for fault in faults)
    return {
        "seed": seed,
        "faults": len(faults),
        "goodput": round(meter.goodput, 5),
        "ettr": round(meter.ettr, 5),
        "goodput_checkpoint_restart": round(restart.goodput, 5),
        "outcomes": dict(job.outcomes.most_common()),
        "waste_hours": {name: round(meter.waste_s[name] / 3600, 3) for name in WASTE},
        "waste_hours_checkpoint_restart": {name: round(restart.waste_s[name] / 3600, 3) for name in WASTE},
        "causes": {
            name: {
                "faults": counts[name],
                "hours": round(meter.causes_s[name] / 3600, 3),
                "hours_checkpoint_restart": round(restart.causes_s[name] / 3600, 3),
            }
            for name in sorted({*meter.causes_s, *restart.causes_s, *counts}, key=lambda name: -meter.causes_s[name])
        },
        "checkpoint_interval_s": round(interval_s, 1),
        "wall_s": round(core_s, 1),
    }


def core_cost(nodes: int) -> dict[str, Any]:
    """Return the processor time, in seconds, that a manager needs for one recovery of `nodes` nodes of 8 ranks.

    Each agent's report is decoded and processed, and each directive is encoded. The sockets are not included.
    """
    core = Recovery(Policy("trace", nodes, GPUS_PER_NODE, budget=BudgetPolicy(max_restarts=9)))
    sent = count(1)

    def report(node: int, stage: Stage, step: int) -> bytes:
        ranks = map(JobRank, range(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE))
        now, last = core.world.generation, core.directive
        obeyed = last.ledger if last is not None and last.order is not Order.FORM else Ledger()
        statuses = tuple(
            RankStatus(
                rank=rank,
                incarnation=core.world.ranks[rank].incarnation if rank in core.world.ranks else 0,
                generation=now,
                stage=stage,
                step=step,
                condition=Condition.CLEAN,
            )
            for rank in ranks
        )
        return encode(
            NodeStatus(
                job_id="trace", node_rank=NodeRank(node), agent_id=f"node{node}", sequence=next(sent), node_count=nodes,
                ranks=statuses, store_host="", store_port=1, standbys=1, max_restarts=9, generation=now,
                ledger=Ledger(term=obeyed.term),
            )
        )  # fmt: skip

    def hear(frame: bytes) -> float:
        began_s = time.process_time()
        status = decode_from_agent(frame)
        assert isinstance(status, NodeStatus)
        if any(isinstance(action, Publish) for action in core.hear(status, 1.0)) and core.directive is not None:
            encode(core.directive)
        return time.process_time() - began_s

    order = [place * 769 % nodes for place in range(nodes)] if nodes % 769 else list(range(nodes))
    stages = {"form": Stage.STARTING, "start": Stage.TRAINING, "steps": Stage.COMMITTED}
    took_s = {name: sum(hear(report(node, stage, 0)) for node in order) for name, stage in stages.items()}
    took_s["loss"] = hear(report(0, Stage.DEAD, 0))
    for stage in (Stage.PAUSED, Stage.JOINED, Stage.RESTORED, Stage.COMMITTED):
        took_s[stage.value] = sum(hear(report(node, stage, 1)) for node in order)
    waits_s = sum(took_s[name] for name in ("loss", "paused", "joined", "restored"))
    assert core.phase is Phase.RUNNING, core.phase
    return {"nodes": nodes, "manager_s": round(waits_s, 3), **{name: round(s, 3) for name, s in took_s.items()}}


def summary(lines: list[dict[str, Any]], times: Times, args: argparse.Namespace) -> dict[str, Any]:
    """Return the last line."""
    figures: dict[str, Any] = {}
    for name in ("goodput", "ettr", "goodput_checkpoint_restart"):
        values = [line[name] for line in lines]
        figures[name] = round(statistics.mean(values), 4)
        figures[f"{name}_range"] = [min(values), max(values)]
    return {
        **figures,
        "faults_mean": statistics.mean(line["faults"] for line in lines),
        "seeds": [line["seed"] for line in lines],
        "parameters": {
            name: value for name, value in vars(args).items() if name not in ("json", "set", "core_cost", "seeds")
        },
        "checkpoint_interval_s": lines[0]["checkpoint_interval_s"],
        "times": asdict(times),
    }


def tell_line(line: dict[str, Any]) -> str:
    """Return one seed's result as tables."""
    hours, plain = line["waste_hours"], line["waste_hours_checkpoint_restart"]
    rows = [f"{'where the time goes, hours':32}{'taskd':>10}{'restart':>10}"]
    rows += [f"{name:32}{hours[name]:10.2f}{plain[name]:10.2f}" for name in WASTE if hours[name] or plain[name]]
    rows += ["", f"{'by cause, hours':32}{'taskd':>10}{'restart':>10}{'faults':>8}"]
    rows += [
        f"{name:32}{entry['hours']:10.2f}{entry['hours_checkpoint_restart']:10.2f}{entry['faults']:8}"
        for name, entry in line["causes"].items()
    ]
    ends = ", ".join(f"{name} {count}" for name, count in line["outcomes"].items())
    head = f"seed {line['seed']}: {line['faults']} faults; {ends}"
    return "\n".join([head, *rows, ""])


def tell_summary(last: dict[str, Any]) -> str:
    """Return the means as text."""
    names = ("goodput", "ettr", "goodput_checkpoint_restart")
    figures = [f"{name} {last[name]} (from {last[f'{name}_range'][0]} to {last[f'{name}_range'][1]})" for name in names]
    return "\n".join([*figures, f"parameters {last['parameters']}", f"times {last['times']}"])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=16_384, help="GPUs of the job, 8 a node (default 16384)")
    parser.add_argument("--days", type=float, default=54, help="length of the run (default 54)")
    parser.add_argument("--mix", choices=("fthsdp", "llama3"), default="fthsdp", help="published mix and rate")
    parser.add_argument("--rate", type=float, default=1, help="times the published rate (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default 5)")
    parser.add_argument("--places", type=int, default=64, help="most nodes that the core is shown (default 64)")
    parser.add_argument("--spares", type=int, default=16, help="nodes that wait beside the job (default 16)")
    parser.add_argument("--recover-strategy", default=",".join(s.value for s in Strategy if s is not Strategy.DUMP))
    parser.add_argument("--max-restarts", type=int, default=32_767)
    parser.add_argument("--wait-reschedule-timeout", type=float, default=270, help="seconds (default 270)")
    parser.add_argument("--checkpoint-interval-s", type=float, help="default: Young's optimum for the mix")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a time of phase_times.csv")
    parser.add_argument("--core-cost", type=int, metavar="NODES", help="only measure the core's work per recovery")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    args = parser.parse_args()
    if args.core_cost is not None and args.core_cost < 1:
        parser.error(f"--core-cost: found {args.core_cost}, expected a number of nodes from 1 on, such as 2048")
    return args


def main() -> int:
    args = parsed()
    if args.core_cost is not None:
        cost = core_cost(args.core_cost)
        say(args.json, cost, "  ".join(f"{name} {value}" for name, value in cost.items()))
        return 0
    changed = {name: float(value) for name, _, value in (word.partition("=") for word in args.set)}
    times = read_times(args.gpus, changed)
    lines = []
    for seed in range(args.seed, args.seed + args.seeds):
        lines.append(play_seed(seed, times, args))
        say(args.json, lines[-1], tell_line(lines[-1]))
    last = summary(lines, times, args)
    say(args.json, last, tell_summary(last))
    return 0


if __name__ == "__main__":
    sys.exit(main())
