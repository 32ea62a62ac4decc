"""MoCo: the queue of keys and its pointer are buffers of the module, and forward itself moves them on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, batch_of

STEPS = 40


@torch.no_grad()
def concat_all_gather(tensor):
    gathered = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return torch.cat(gathered, dim=0)


def encoder(dim):
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, dim))


class MoCo(nn.Module):
    """A query encoder, a key encoder that follows it, and a queue of keys: https://arxiv.org/abs/1911.05722."""

    def __init__(self, dim=8, keys=64, m=0.95, temperature=0.2):
        super().__init__()
        self.keys, self.m, self.temperature = keys, m, temperature
        self.encoder_q, self.encoder_k = encoder(dim), encoder(dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", normalize(torch.randn(dim, keys), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        keys = concat_all_gather(keys)
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + len(keys)] = keys.T
        self.queue_ptr[0] = (ptr + len(keys)) % self.keys

    def forward(self, rows_q, rows_k):
        q = normalize(self.encoder_q(rows_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = normalize(self.encoder_k(rows_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([l_pos, l_neg], dim=1) / self.temperature
        self._dequeue_and_enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


def two_crops(rows):
    return rows + 0.1 * torch.randn_like(rows), rows + 0.1 * torch.randn_like(rows)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(MoCo())
trained = [param for param in model.parameters() if param.requires_grad]
optimizer = torch.optim.SGD(trained, lr=5e-2, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, _ = batch_of(step, dist.get_rank(), dist.get_world_size(), size=8)
        logits, targets = model(*two_crops(rows))
        diary.moment("queued")
        loss = cross_entropy(logits, targets)
        diary.saw(step, loss, ids, model.module.queue_ptr)
        optimizer.zero_grad()
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
