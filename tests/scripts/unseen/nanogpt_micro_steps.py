"""nanoGPT's loop: random windows of one long array of tokens, micro-steps, a rate by hand, and losses now and then."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary

STEPS, MICRO_STEPS, EVAL_EVERY, EVAL_BATCHES = 40, 3, 10, 2
WINDOW, BATCH, VOCABULARY, DIM = 8, 4, 32, 16
WARMUP, HIGHEST, LOWEST = 6, 1e-2, 1e-3


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM), nn.Dropout(drop))

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.behind(x))


class GPT(nn.Module):
    def __init__(self, drop=0.1):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(WINDOW, DIM)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(2))
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


dist.init_process_group("gloo")
diary.moment("setup")
rank, world = dist.get_rank(), dist.get_world_size()
corpus = {
    "train": np.random.default_rng(1).integers(VOCABULARY, size=4000),
    "val": np.random.default_rng(2).integers(VOCABULARY, size=600),
}
torch.manual_seed(1337)
model = DistributedDataParallel(GPT())
raw_model = model.module
decayed = [p for p in raw_model.parameters() if p.dim() >= 2]
others = [p for p in raw_model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95)
)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


def get_batch(split, *which):
    tokens = corpus[split]
    starts = np.random.default_rng((rank, *which)).integers(len(tokens) - WINDOW - 1, size=BATCH)
    x = torch.stack([torch.from_numpy(tokens[at : at + WINDOW]) for at in starts])
    y = torch.stack([torch.from_numpy(tokens[at + 1 : at + 1 + WINDOW]) for at in starts])
    return starts, x, y


def get_lr(step):
    if step < WARMUP:
        return HIGHEST * (step + 1) / (WARMUP + 1)
    ratio = (step - WARMUP) / (STEPS - WARMUP)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * ratio)) * (HIGHEST - LOWEST)


def estimate_loss(step):
    diary.moment("evaluation")
    raw_model.eval()
    losses = torch.zeros(2)
    with torch.no_grad():
        for number, split in enumerate(("train", "val")):
            for k in range(EVAL_BATCHES):
                _, x, y = get_batch(split, 1_000_000 + step, k)
                losses[number] += raw_model(x, y) / EVAL_BATCHES
    raw_model.train()
    dist.all_reduce(losses)
    diary.saw(f"evaluation {step}", losses / world)


state.after_commit(estimate_loss, every=EVAL_EVERY)


@taskd.resilient(state)
def train():
    starts, x, y = get_batch("train", state.step, 0)
    for step in range(state.step, STEPS):
        diary.moment("step")
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        for micro_step in range(MICRO_STEPS):
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
            loss = model(x, y) / MICRO_STEPS
            diary.saw((step, micro_step), loss, starts.tolist())
            last = micro_step == MICRO_STEPS - 1
            starts, x, y = get_batch("train", step + 1, 0) if last else get_batch("train", step, micro_step + 1)
            loss.backward()
            diary.moment("backward")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
