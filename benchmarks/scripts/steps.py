"""One rank that measures its own steps: with taskd's part in them, and without.

Rules:

1. A step is real work throughout: drawing a batch, forward, backward, AdamW; no sleep. The size of the batch is chosen
   so that a step takes 10 ms of processor time.
2. Steps are made in turns of a few. In a turn *with*, the hooks of the `TrainState` run and each step is committed. In
   a turn *without*, the very same objects train with their hooks removed, and nothing is committed. The order of the
   two alternates from pair to pair.
3. Nothing is measured before a byte can be read from the FIFO `--go`: until then warm processes may still be starting.
4. With `--plain` no line of taskd is imported and nothing is compared.
"""

import argparse
import json
import os
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
STEP_S = 0.010
_HOOKS: dict[str, Callable[[], object]] = {
    "_compiled_call_impl": lambda: None,
    "_forward_pre_hooks": OrderedDict,
    "_forward_hooks": OrderedDict,
    "_optimizer_step_pre_hooks": OrderedDict,
    "_optimizer_step_post_hooks": OrderedDict,
}


class Work:
    """Model, optimizer and batch size of the measured step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        self.batch_size = 256

    def step(self) -> None:
        """Make one training step."""
        self.optimizer.zero_grad()
        self.model(torch.randn(self.batch_size, WIDTH)).square().mean().backward()
        self.optimizer.step()

    def calibrate(self) -> None:
        """Choose the size of the batch so that a step takes 10 ms of processor time."""
        for _ in range(4):
            took_s = statistics.median(_timed_s(self.step) for _ in range(20))
            self.batch_size = max(1, round(self.batch_size * STEP_S / took_s))

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Remove all hooks of model and optimizer within a block."""
        owners: tuple[object, ...] = (self.model, self.optimizer)
        kept = [(owner, name, hooks) for owner in owners for name, hooks in vars(owner).items() if name in _HOOKS]
        for owner, name, _ in kept:
            setattr(owner, name, _HOOKS[name]())
        try:
            yield
        finally:
            for owner, name, hooks in kept:
                setattr(owner, name, hooks)


class Turn:
    """Some steps. Medians of their wall-clock and processor times, and times of the commits, in microseconds."""

    def __init__(self, steps: int, work: Work, commit: Callable[[], None] | None) -> None:
        wall, cpu, commits = [], [], []
        for _ in range(steps):
            begun_ns, begun_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            work.step()
            stepped_ns = time.perf_counter_ns()  # in both kinds of turns: reading the clock is not taskd's part
            if commit is not None:
                commit()
            commits.append((time.perf_counter_ns() - stepped_ns) / 1000)
            cpu.append((time.thread_time_ns() - begun_cpu_ns) / 1000)
            wall.append((time.perf_counter_ns() - begun_ns) / 1000)
        self.wall_us = statistics.median(wall)
        self.cpu_us = statistics.median(cpu)
        self.commits_us = commits


def compare(work: Work, commit: Callable[[], None], pairs: int, steps: int) -> dict[str, Any]:
    """Take turns; return the quotient with/without of each pair, and the times of commits and plain steps."""
    found: dict[str, Any] = {"wall": [], "cpu": [], "commit_us": [], "step_us": []}
    for pair in range(pairs):
        turns: dict[bool, Turn] = {}
        for ours in (True, False) if pair % 2 else (False, True):
            if ours:
                turns[ours] = Turn(steps, work, commit)
            else:
                with work.bare():
                    turns[ours] = Turn(steps, work, None)
        found["wall"].append(turns[True].wall_us / turns[False].wall_us)
        found["cpu"].append(turns[True].cpu_us / turns[False].cpu_us)
        found["commit_us"] += turns[True].commits_us
        found["step_us"].append(turns[False].wall_us)
    return found


def with_taskd(work: Work, args: argparse.Namespace) -> None:
    """Train as a user of taskd does, in a worker with everything attached; measure and write the figures."""
    import taskd
    from taskd.adaptors.training.runtime import current

    state = taskd.TrainState(model=work.model, optimizer=work.optimizer)

    @taskd.resilient(state)
    def train() -> None:
        runtime = current()
        if runtime is None or not runtime.recorder.attached or runtime.link.config.position is None:
            raise SystemExit("this worker has no agent, no black box or no position file; nothing is measured")
        Turn(args.first, work, state.commit)
        args.go.read_bytes()
        work.calibrate()
        found = compare(work, state.commit, args.pairs, args.steps)
        args.out.write_text(json.dumps(found))

    train()


def main() -> None:
    """Run the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--go", type=Path, required=True, help="FIFO that holds back the measurement")
    parser.add_argument("--out", type=Path, required=True, help="where the figures are written; the PID beside it")
    parser.add_argument("--pairs", type=int, required=True, help="of turns")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--first", type=int, default=5, help="steps before anything is measured (default 5)")
    parser.add_argument("--plain", action="store_true", help="train without taskd; compare nothing")
    args = parser.parse_args()
    args.out.with_suffix(".pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = Work()
    if args.plain:
        args.go.read_bytes()
        work.calibrate()
        Turn(2 * args.pairs * args.steps, work, None)
        args.out.write_text("{}")
    else:
        with_taskd(work, args)
    dist.destroy_process_group()


def _timed_s(function: Callable[[], None]) -> float:
    begun_s = time.thread_time()
    function()
    return time.thread_time() - begun_s


if __name__ == "__main__":
    main()
