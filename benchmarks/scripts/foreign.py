"""A job that now and then does other work than steps, as `benchmarks/works.py` generates it, unannounced to taskd.

Rank 0 does it alone, and the others wait in a barrier. Every rank evaluates. Ranks log their steps as `train.py` does.
"""

import argparse
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from benchmarks.scripts.train import StepLog, batch, build_network, build_optimizer
from benchmarks.works import EVALUATION, Work, works


def upload(seconds: float) -> None:
    """Wait for another program, as for an upload."""
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)


def multiply(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        numpy.linalg.svd(numpy.ones((300, 300)))


def receive(seconds: float) -> None:
    """Receive from a server that answers late."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(seconds)
        try:
            here.recv(1)
        except TimeoutError:
            return


def loop(seconds: float) -> None:
    end_s, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        turns += 1


def collect(seconds: float) -> None:
    """Collect a lot of garbage."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        kept = [[number] for number in range(300_000)]
        gc.collect()
        del kept


def compile_native(seconds: float) -> None:
    """Run a compiler again and again, as torch.compile does."""
    end_s = time.monotonic() + seconds
    program = "".join(f"int f{number}(int x) {{ return x * {number}; }}\n" for number in range(2000))
    while time.monotonic() < end_s:
        subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-x", "c", "-c", "-", "-o", os.devnull],
            input=program.encode(),
            check=True,
        )


class Trainer:
    """Training of one rank."""

    def __init__(self, args: argparse.Namespace, log: StepLog) -> None:
        self._args, self._log = args, log
        self._rank = dist.get_rank()
        self._network = build_network()
        self._optimizer = build_optimizer(self._network)
        self._model = DistributedDataParallel(self._network)
        self.state = taskd.TrainState(model=self._model, optimizer=self._optimizer)
        self._does: dict[str, Callable[[float], None]] = {
            "upload": upload,
            "numpy": multiply,
            "socket": receive,
            "sleep": time.sleep,
            "loop": loop,
            "collect": collect,
            "compile": compile_native,
            "save": self._save,
            EVALUATION: self._evaluate,
        }

    def train(self) -> None:
        """Train from the newest committed step on, until the process is killed."""
        for work in works(self._args.seed):
            while self.state.step < work.after:
                self._train_once()
            if self.state.step == work.after:
                self._do(work)

    def _do(self, work: Work) -> None:
        if self._rank == 0 or work.kind == EVALUATION:
            self._does[work.kind](work.seconds)
        dist.barrier()

    def _train_once(self) -> None:
        begun_s = time.monotonic()
        self._optimizer.zero_grad()
        loss = self._model(batch(self.state.step, self._rank)).square().mean()
        loss.backward()
        time.sleep(max(0.0, begun_s + self._args.step_ms / 1000 - time.monotonic()))
        self._optimizer.step()
        self.state.commit(loss=loss)
        self._log.committed(self.state.step)

    def _evaluate(self, seconds: float) -> None:
        """Evaluate in train mode, as samplers do."""
        end_s = time.monotonic() + seconds
        with torch.no_grad():
            while time.monotonic() < end_s:
                self._network(batch(0, self._rank))

    def _save(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            with (self._args.record / "saved").open("wb") as file:
                file.write(os.urandom(1 << 22))
                os.fsync(file.fileno())


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True, metavar="DIRECTORY", help="of the ranks' logs")
    parser.add_argument("--step-ms", type=float, required=True, help="length of a usual step")
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    log = StepLog(args.record, int(os.environ["RANK"]))
    log.started()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(args, log)
    taskd.resilient(trainer.state)(trainer.train)()


if __name__ == "__main__":
    main()
