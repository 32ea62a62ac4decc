"""A job with uneven steps, as `benchmarks/schedule.py` generates them. None of this is announced to taskd.

Rules:

1. Evaluation is that of usual scripts: the model in eval mode, no gradients, on all ranks. Rank 0 alone writes
   checkpoints. A slow step is slow on one rank, given by the step's number.
2. A step sleeps, as a step that waits for an accelerator does. Ranks log their steps as `train.py` does.
"""

import argparse
import os
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from benchmarks.schedule import Step, steps
from benchmarks.scripts.train import StepLog, batch, build_network, build_optimizer


class Trainer:
    """Training of one rank."""

    def __init__(self, args: argparse.Namespace, log: StepLog) -> None:
        self._args, self._log = args, log
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._network = build_network()
        self._optimizer = build_optimizer(self._network)
        self._model = DistributedDataParallel(self._network)
        self.state = taskd.TrainState(model=self._model, optimizer=self._optimizer)

    def train(self) -> None:
        """Train from the newest committed step on, until the process is killed."""
        for step in islice(steps(self._args.seed), self.state.step, None):
            self._train_once(step)
            if step.evaluation:
                self._evaluate(step)
            if step.checkpoint and self._rank == 0:
                self._save(step)

    def _spend(self, length: float, since_s: float) -> None:
        time.sleep(max(0.0, since_s + length * self._args.step_ms / 1000 - time.monotonic()))

    def _train_once(self, step: Step) -> None:
        begun_s = time.monotonic()
        another = step.slow and step.number % self._ranks != self._rank
        self._optimizer.zero_grad()
        loss = self._model(batch(self.state.step, self._rank)).square().mean()
        self._spend(1.0 if another else step.work, begun_s)
        loss.backward()
        self._optimizer.step()
        self.state.commit(loss=loss)
        self._log.committed(self.state.step)

    def _evaluate(self, step: Step) -> None:
        begun_s = time.monotonic()
        self._model.eval()
        with torch.no_grad():
            self._network(batch(0, self._rank))
            self._spend(step.evaluation, begun_s)
        self._model.train()

    def _save(self, step: Step) -> None:
        begun_s = time.monotonic()
        saved = {"network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(saved, self._args.record / "checkpoint")
        self._spend(step.checkpoint, begun_s)


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
