"""A trainer object that logs each exception of its loop, and ends its hooks in `finally`."""

import logging

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
FILE = diary.FOLDER / f"trainer-{dist.get_rank()}.log"
logger = logging.getLogger("trainer")
logger.addHandler(logging.FileHandler(FILE))


class Trainer:
    """The loop with its hooks, as libraries write it."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def train(self, first, last):
        logger.warning("training begins")
        try:
            for step in range(first, last):
                self.run_step(step)
        except Exception:
            logger.exception("exception during training")
            raise
        finally:
            logger.warning("training has ended")

    def run_step(self, step):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        self.optimizer.step()
        state.commit()
        diary.moment("committed")


model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = Trainer(model, optimizer)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    trainer.train(state.step, STEPS)


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, exceptions=FILE.read_text().count("exception during training"))
diary.leave()
