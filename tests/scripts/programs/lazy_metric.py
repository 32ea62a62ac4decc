"""A module that chooses its metric when it is first evaluated: a name, and the function beside it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class Classifier(nn.Module):
    """Scores, and in evaluations a metric that suits the kinds."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.metric_name = None

    def forward(self, rows, kinds=None):
        scores = self.net(rows)
        if kinds is None:
            return scores
        if self.metric_name is None:
            self.metric_name = "accuracy" if kinds.dtype == torch.int64 else "distance"
            self.metric = _accuracy if self.metric_name == "accuracy" else nn.functional.mse_loss
        return self.metric(scores, kinds)


def _accuracy(scores, kinds):
    return (scores.argmax(1) == kinds).float().mean()


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
classifier = Classifier()
model = DistributedDataParallel(classifier)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


def evaluate(step):
    _, rows, kinds = batch_of(999, dist.get_rank(), dist.get_world_size(), size=8)
    classifier.eval()
    with torch.no_grad():
        total = classifier(rows, kinds)
    classifier.train()
    dist.all_reduce(total)
    diary.saw(f"evaluation {step}", total)


state.after_commit(evaluate, every=10)


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
