"""A reference model that a callback mixes with the trained weights every five steps, and that the loss looks at."""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class MixReference:
    """Moves the reference towards the policy."""

    def __init__(self, reference, every, share):
        self.reference, self.every, self.share = reference, every, share

    @torch.no_grad()
    def on_step_end(self, step, policy):
        if step % self.every == 0:
            for old, new in zip(self.reference.parameters(), policy.parameters(), strict=True):
                old.data.mul_(1 - self.share).add_(new.data, alpha=self.share)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
net = network()
reference = copy.deepcopy(net).eval().requires_grad_(False)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
callbacks = [MixReference(reference, every=5, share=0.6)]
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        scores = model(rows)
        distance = kl_div(scores.log_softmax(1), reference(rows).softmax(1), reduction="batchmean")
        loss = cross_entropy(scores, kinds) + 0.3 * distance
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        for callback in callbacks:
            callback.on_step_end(step + 1, model.module)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, reference, step=state.step)
diary.leave()
