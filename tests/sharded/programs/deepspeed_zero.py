"""DeepSpeed on CPUs, under torchrun: `deepspeed_zero.py STAGE FOLDER [kill] [sdk]`. Each rank writes its result there.

`kill`: rank 1 is killed by the kernel in a backward pass, once. `sdk`: with a training state. Needs DS_ACCELERATOR=cpu.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import taskd

deepspeed: Any = import_module("deepspeed")
STAGE, FOLDER, WAYS = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
STEPS = 8


def die(_gradient: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors(one)


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
deepspeed.init_distributed("gloo")
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": STAGE},
        "zero_allow_untested_optimizer": True,
    },
)
losses: list[str] = []


def work(step: int) -> None:
    draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
    rows, kinds = torch.randn(4, 32, generator=draw), torch.randint(0, 10, (4,), generator=draw)
    loss = torch.nn.functional.cross_entropy(engine(rows), kinds)
    if "kill" in WAYS and dist.get_rank() == 1 and step == 4 and not (FOLDER / "killed").exists():
        (FOLDER / "killed").touch()
        loss.register_hook(die)
    engine.backward(loss)
    engine.step()
    losses.append(float(loss.item()).hex())


if "sdk" in WAYS:
    inner = getattr(optimizer, "optimizer", optimizer)
    state = taskd.TrainState(model=engine.module, optimizer=inner, seed=1)

    @taskd.resilient(state)
    def train() -> None:
        for step in range(state.step, STEPS):
            work(step)
            state.commit()

    train()
else:
    for number in range(STEPS):
        work(number)
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=STAGE == 3):
    found = [parameter.detach().clone() for parameter in model.parameters()]
found += tensors(list(getattr(optimizer, "optimizer", optimizer).state.values()))
digest = hashlib.sha256(b"".join(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() for tensor in found))
(FOLDER / f"rank-{dist.get_rank()}").write_text(json.dumps([digest.hexdigest(), losses]))
dist.barrier()
