"""Digits with DeepSpeed, as its documentation teaches: ZERO_STAGE, accumulated micro-batches, checkpoints."""

import os
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", os.environ.get("SCENE_DEVICE", "cpu"))
os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from tests.scripts import diary
from tests.trainers.programs import moments, place

if not moments.PLAIN:
    import taskd
    import taskd.deepspeed

STAGE = int(os.environ["ZERO_STAGE"])
EPOCHS, SAVE_EVERY, ACCUMULATED, BATCH = 3, 4, 2, 16
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATED,
    "gradient_clipping": 1.0,
    "steps_per_print": 10_000,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 6}},
    "zero_optimization": {"stage": STAGE, "reduce_bucket_size": 3000, "stage3_param_persistence_threshold": 100},
    "zero_allow_untested_optimizer": True,
}
CHECKPOINTS = diary.FOLDER / "checkpoints"


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 300), torch.nn.Linear(300, 64), torch.nn.Linear(64, 64)])
        self.dropout = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        others: Any = self.layers[-1]
        return self.out(x + torch.nn.functional.linear(x, others.weight))


torch.manual_seed(1)
np.random.seed(1)
deepspeed.init_distributed(place.BACKEND)
digits = load_digits()
features, kinds = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
rows, held_out = TensorDataset(features[:320], kinds[:320]), TensorDataset(features[320:], kinds[320:])
engine, _, _, schedule = deepspeed.initialize(
    model=(net := Network()), model_parameters=net.parameters(), config=CONFIG
)
loader = engine.deepspeed_io(rows, num_local_io_workers=0)
torch.manual_seed(10 + dist.get_rank())


def log(step: int, loss: float) -> None:
    """Log each step once. A step that is done again after a fault is in the log already."""
    path = diary.FOLDER / f"logged-{dist.get_rank()}"
    known = path.read_text().splitlines() if path.exists() else []
    if not known or int(known[-1].split()[0]) < step:
        moments.logged(step, f"loss {loss.hex()} lr {engine.get_lr()[0].hex()}")


def save(step: int) -> None:
    moments.moment("before save")
    engine.save_checkpoint(str(CHECKPOINTS), tag=f"step-{step}")


def evaluate(step: int) -> None:
    engine.eval()
    wrong = torch.zeros(1, device=place.DEVICE)
    with torch.no_grad():
        for start in range(0, 96, 32):
            moments.moment("evaluation")
            x, y = held_out[start + 16 * dist.get_rank() : start + 16 * dist.get_rank() + 16]
            wrong += torch.nn.functional.cross_entropy(engine(x.to(place.DEVICE)), y.to(place.DEVICE))
    dist.all_reduce(wrong)
    engine.train()
    diary.saw(f"evaluated {step}", wrong.item())


def watch_writing() -> None:
    write = engine.checkpoint_engine.save

    def watched(*args: object, **options: object) -> None:
        moments.moment("save")
        write(*args, **options)

    engine.checkpoint_engine.save = watched


def watch_step() -> None:
    inner = engine.basic_optimizer
    inner.register_step_post_hook(lambda *_: moments.moment("optimizer"))


watch_step()
watch_writing()
if not moments.PLAIN:
    state = taskd.deepspeed.state(engine, loader=loader, backup_every=1)
    state.after_commit(evaluate, every=3)
    state.after_commit(save, every=SAVE_EVERY)


def await_copies() -> None:
    """Wait for the first copies, since steps are short here. A rank that dies before all have copies restarts all."""
    backups: Any = state._recovery.backups
    end_s = time.monotonic() + 2
    while STAGE and state.step > 1 and backups and not backups.tally.whole and time.monotonic() < end_s:
        time.sleep(0.01)


def train() -> None:
    total = 0.0
    for _epoch in range(EPOCHS) if moments.PLAIN else state.epochs(EPOCHS):
        for x, y in loader:
            step, first = engine.global_steps + 1, engine.micro_steps % ACCUMULATED == 0
            moments.at(step)
            output = engine(x.to(place.DEVICE))
            if output.requires_grad:
                output.register_hook(moments.into_backward)
            loss = torch.nn.functional.cross_entropy(output, y.to(place.DEVICE))
            engine.backward(loss)
            moments.moment("micro")
            total = loss.item() if first else total + loss.item()
            if not first:  # before the step: with stage 0 peers may have committed it while this rank dies in it
                diary.saw(step, total, engine.get_lr()[0])
                log(step, total)
            engine.step()
            if not moments.PLAIN:
                state.commit()
                await_copies()
            elif not first:
                evaluate(step) if step % 3 == 0 else None
                save(step) if step % SAVE_EVERY == 0 else None


(train if moments.PLAIN else taskd.resilient(state)(train))()


def weights() -> dict[str, torch.Tensor]:
    if STAGE < 3:
        return dict(engine.module.state_dict())
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for one in values for tensor in tensors(one)]


class Told:
    def state_dict(self) -> dict[str, object]:
        return {
            "weights": weights(),
            "optimizer": [dict(values) for values in engine.basic_optimizer.state.values()],
            "schedule": schedule.state_dict(),
            "counters": [engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps],
            "random": torch.rand(3),
        }


latest = (CHECKPOINTS / "latest").read_text()
written = sorted(CHECKPOINTS.rglob("*.pt"))
names = [str(path.relative_to(CHECKPOINTS)) for path in written]
saved = [diary.fingerprint(tensors(torch.load(path, weights_only=False))) for path in written]
diary.finish(Told(), latest=latest, files=names, saved=saved)
diary.leave()
