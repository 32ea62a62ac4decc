"""Floor of the recovery time: a recovery in which nothing has to be detected or agreed upon.

Method: bare processes, without torchrun and without taskd. Four ranks train the model of `scripts/train.py`. For each
kill one more process is in reserve. It has imported torch, built model and optimizer, and stepped them once. All
gradients travel in one all-reduce, without DDP. The parent hosts the TCPStore, which is known and outlives every rank.

The parent kills a rank and detects the death through a pidfd. Then it writes one line with rank and generation to the
pipes of the reserve and of each survivor. The survivors leave the broken all-reduce with gloo's own error, destroy the
group, and read their line. All four form the group anew under the generation's prefix. They do one all-reduce (of the
step's number) and one step. The time runs from the kill to the last rank's commit.

A real recovery adds reports through agent and manager, and the exit from collectives that gloo does not break by
itself. It also adds the user's set-up in the new process, DDP's buckets, and the transfer of the state.
"""

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.job import LOOK_S, ROOT, BenchmarkError, StepLogs, stock_environment
from benchmarks.scripts.train import StepLog, batch, build_network, build_optimizer, pace

LIMIT_S = 60
TIMEOUT = timedelta(seconds=LIMIT_S)


def floors_s(directory: Path, ranks: int, step_ms: float, chance: random.Random, kills: int) -> list[float]:
    """Kill a random rank `kills` times. Return, for each, the seconds until the last rank's first step afterwards."""
    logs = StepLogs(directory, ranks)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    with _processes(ranks + kills, store.port, ranks, step_ms, directory) as processes:
        for process in processes:
            _await_ready(process)
        world, reserve = processes[:ranks], processes[ranks:]
        for rank, process in enumerate(world):
            _order(process, rank, 0)
        _await_until(lambda: logs.all_at(20))
        return [_kill(world, process, generation, logs, chance) for generation, process in enumerate(reserve, start=1)]


def _kill(
    world: list["subprocess.Popen[str]"],
    newcomer: "subprocess.Popen[str]",
    generation: int,
    logs: StepLogs,
    chance: random.Random,
) -> float:
    time.sleep(chance.uniform(0.2, 0.7))  # the random moment of the fault
    victim = chance.randrange(len(world))
    dead, world[victim] = world[victim], newcomer
    pidfd = os.pidfd_open(dead.pid)
    killed_s = time.monotonic()
    os.kill(dead.pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    _order(newcomer, victim, generation)
    for rank, process in enumerate(world):
        if rank != victim:
            _order(process, rank, generation)
    os.close(pidfd)
    _await_until(lambda: logs.resumed_s(victim, dead.pid, killed_s) is not None)
    resumed_s = logs.resumed_s(victim, dead.pid, killed_s)
    assert resumed_s is not None
    return resumed_s - killed_s


@contextmanager
def _processes(count: int, port: int, ranks: int, step_ms: float, log: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    words = [sys.executable, "-m", "benchmarks.floor", "--port", port, "--ranks", ranks, "--step-ms", step_ms]
    command = [str(word) for word in (*words, "--record", log)]
    processes = [
        subprocess.Popen(
            command, env=stock_environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _order(process: "subprocess.Popen[str]", rank: int, generation: int) -> None:
    _pipe(process.stdin).write(f"{rank} {generation}\n")
    _pipe(process.stdin).flush()


def _await_ready(process: "subprocess.Popen[str]") -> None:
    if _pipe(process.stdout).readline() != "ready\n":
        raise BenchmarkError("a process of the floor has ended before it was ready")


def _await_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise BenchmarkError(f"the bare processes made no step within {LIMIT_S} s")
        time.sleep(LOOK_S)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# ---- one of the bare processes


class Rank:
    """A bare process that holds a model and joins one world after another."""

    def __init__(self, port: int, ranks: int, step_ms: float, log: Path) -> None:
        torch.set_num_threads(1)
        self._store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
        self._ranks = ranks
        self._step_ms = step_ms
        self._directory = log
        self._log: StepLog | None = None
        self._network = build_network()
        self._optimizer = build_optimizer(self._network)
        self._step = 0
        self._backward(0)
        self._optimizer.step()

    def serve(self) -> None:
        """Follow orders until the parent closes the pipe."""
        print("ready", flush=True)
        for line in sys.stdin:
            rank, generation = map(int, line.split())
            self._join(rank, generation)
            try:
                self._train(rank)
            except RuntimeError:  # a peer has died
                dist.destroy_process_group()

    def _join(self, rank: int, generation: int) -> None:
        if self._log is None:
            self._log = StepLog(self._directory, rank)
            self._log.started()
        store = dist.PrefixStore(str(generation), self._store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=self._ranks, timeout=TIMEOUT)
        newest = torch.tensor(self._step)
        dist.all_reduce(newest, dist.ReduceOp.MAX)
        self._step = int(newest)

    def _train(self, rank: int) -> None:
        assert self._log is not None
        while True:
            started_s = time.monotonic()
            self._backward(rank)
            gradients = [_gradient(parameter) for parameter in self._network.parameters()]
            flat = torch.cat([gradient.view(-1) for gradient in gradients])
            dist.all_reduce(flat)
            flat /= self._ranks
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
            self._optimizer.step()
            self._step += 1
            self._log.committed(self._step)
            pace(started_s, self._step_ms)

    def _backward(self, rank: int) -> None:
        self._optimizer.zero_grad()
        self._network(batch(self._step, rank)).square().mean().backward()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One of the bare processes; started by `floors_s`.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    Rank(given.port, given.ranks, given.step_ms, given.record).serve()
