"""Handwritten digits with accelerate, as its documentation teaches: accumulation, a scheduler, clipping, evaluations.

ACCELERATE_CASE: "ddp", "fsdp2", or "sampler", whose shuffling ranks agree on when a pass begins.
"""

import os

import torch
from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import taskd
from tests.scripts import diary
from tests.trainers.programs import moments, place

CASE = os.environ.get("ACCELERATE_CASE", "ddp")
EPOCHS, PARTS = 3, 2


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 48),
        nn.LayerNorm(48),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(48, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class Noisy(TensorDataset):
    """Rows with a little noise, drawn when they are read."""

    def __getitem__(self, index):
        row, kind = super().__getitem__(index)
        return row + 0.01 * torch.randn_like(row), kind


set_seed(5)
digits = load_digits()
rows, kinds = torch.tensor(digits.data[:460], dtype=torch.float32) / 16, torch.tensor(digits.target[:460])
plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if CASE == "fsdp2" else None
accelerator = Accelerator(
    cpu=place.ON_CPU,
    gradient_accumulation_steps=PARTS,
    fsdp_plugin=plugin,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=CASE != "sampler"),
)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 60)
loader = DataLoader(Noisy(rows[:340], kinds[:340]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(rows[340:], kinds[340:]), batch_size=16)
model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
state = None
if not moments.PLAIN:
    import taskd.accelerate

    state = taskd.accelerate.prepare(accelerator, loader, backup_every=2 if CASE == "fsdp2" else None)


def evaluate(epoch: int) -> None:
    model.eval()
    right = []
    with torch.no_grad():
        for some, wanted in held_out:
            moments.moment("evaluation")
            right.append(accelerator.gather_for_metrics(model(some).argmax(1) == wanted))
    model.train()
    assert sum(map(len, right)) == 120
    diary.saw(f"accuracy {epoch}", torch.cat(right).float().mean())


def save(epoch: int) -> None:
    path = diary.FOLDER / f"checkpoint-{epoch}"
    accelerator.wait_for_everyone()
    moments.moment("checkpoint")
    accelerator.save_state(str(path))


def train() -> None:
    step = 0 if state is None else state.step
    for epoch in range(EPOCHS) if state is None else state.epochs(EPOCHS):
        model.train()
        seen = []
        for some, wanted in loader:
            moments.at(step + 1)
            with accelerator.accumulate(model):
                loss = cross_entropy(model(some), wanted)
                loss.register_hook(moments.into_backward)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen += [loss, some.sum()]
            if accelerator.sync_gradients:
                step += 1
                diary.saw(step, *seen)
                seen = []
            else:
                moments.moment("between parts")
            if state is not None:
                state.commit()
        evaluate(epoch)
        if CASE != "fsdp2":
            save(epoch)


train() if state is None else taskd.resilient(state)(train)()
diary.finish(model, optimizer, scheduler, step=accelerator.step, numbers=torch.rand(3))
diary.leave()
