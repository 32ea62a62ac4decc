"""A small GPT-2 on Python's own text with transformers' Trainer, as its documentation teaches.

HF_CASE says with which arguments. `told_by` names of a checkpoint whatever must be as on the plain library.
"""

import codecs
import hashlib
import json
import os
import this  # its text is the data
from pathlib import Path

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.scripts import diary
from tests.trainers.programs import moments

if not moments.PLAIN:
    from taskd.hf import TaskdCallback, resilient

CASE = os.environ.get("HF_CASE", "steps")
TEXT = (codecs.decode(this.s, "rot13") * 3).encode()
LENGTH = 24
TIMES = ("runtime", "per_second")


class Texts(torch.utils.data.Dataset):
    """Pieces of the text, bytes as tokens; `noisy` ones are read with a little noise, as augmentation does."""

    def __init__(self, begin: int, end: int, *, noisy: bool = False) -> None:
        self.places = range(begin, end)
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index):
        place = self.places[index] * 11
        tokens = torch.tensor(list(TEXT[place : place + LENGTH]))
        if self.noisy and torch.rand(()) < 0.5:
            tokens[int(torch.randint(LENGTH, ()))] = 32
        return {"input_ids": tokens, "labels": tokens.clone()}


class Stream(torch.utils.data.IterableDataset):
    """The same, one after the other."""

    def __iter__(self):
        texts = Texts(0, 70)
        return (texts[index] for index in range(len(texts)))


class Watched(Trainer):  # type: ignore[misc]  # transformers is not there where types are checked
    """Tells what each micro-batch gave, and the moment at which a checkpoint is half written."""

    micro = 0

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        diary.saw(f"{self.state.global_step + 1}.{self.micro}", loss)
        self.micro += 1
        return loss

    def _save_scaler(self, output_dir):
        moments.moment("checkpoint")
        super()._save_scaler(output_dir)


class Moments(TrainerCallback):  # type: ignore[misc]  # transformers is not there where types are checked
    """Says where the training is, and keeps what the loggers are given."""

    def on_step_begin(self, args, state, control, **kwargs):
        trainer.micro = 0
        moments.at(state.global_step + 1)

    def on_substep_end(self, args, state, control, **kwargs):
        moments.moment("micro")

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        moments.moment("optimizer")

    def on_optimizer_step(self, args, state, control, **kwargs):
        moments.moment("stepped")

    def on_prediction_step(self, args, state, control, **kwargs):
        moments.moment("evaluation")

    def on_epoch_end(self, args, state, control, **kwargs):
        moments.moment("epoch")

    def on_log(self, args, state, control, logs=None, **kwargs):
        moments.logged(state.global_step, json.dumps(without_times(logs), sort_keys=True))
        moments.moment("logged")


def without_times(lines):
    """What was logged, but for what a clock tells."""
    return {key: value for key, value in lines.items() if not any(time in key for time in TIMES)}


def told_by(folder: Path) -> dict[str, str]:
    """Digests of the files of all checkpoints."""
    told = {}
    for path in sorted(folder.glob("checkpoint-*/**/*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".pt", ".pth"):
            told[name] = diary.fingerprint(torch.load(path, weights_only=False))
        elif path.name == "trainer_state.json":
            state = json.loads(path.read_text())
            state["log_history"] = [without_times(line) for line in state["log_history"]]
            state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name
            told[name] = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:12]
        elif path.suffix == ".safetensors":
            told[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        elif path.is_file() and path.name != "training_args.bin":
            told[name] = ""
    return told


COMMON = {
    "output_dir": str(diary.FOLDER / "out"),
    "use_cpu": True,
    "ddp_backend": "gloo",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 3,
    "learning_rate": 3e-3,
}
STEPS = {
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 3,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_steps": 4,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "warmup_steps": 2,
}
EPOCHS = {
    "num_train_epochs": 4,
    "logging_strategy": "epoch",
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": {"patience": 0},
    "include_num_input_tokens_seen": "all",
}
CASES = {
    "steps": STEPS,
    "epochs": EPOCHS,
    "stream": {**STEPS, "max_steps": 12},
    "workers": {"dataloader_num_workers": 2, "num_train_epochs": 2, "logging_steps": 2, "save_strategy": "no"},
    "fsdp2": {
        "fsdp": "full_shard",
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
        "num_train_epochs": 2,
        "logging_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "no",
    },
}

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))


def into_backward(module, args, output):
    """The gradient of what comes out of the first block tells that the backward pass has come so far."""
    hidden = output[0] if isinstance(output, tuple) else output
    if hidden.requires_grad:
        hidden.register_hook(moments.into_backward)


model.transformer.h[0].register_forward_hook(into_backward)
callbacks = [Moments(), *([] if moments.PLAIN else [TaskdCallback(backup_every=2 if CASE == "fsdp2" else None)])]
if CASE == "epochs":
    callbacks.append(EarlyStoppingCallback(early_stopping_patience=3))
trainer = Watched(
    model=model,
    args=TrainingArguments(**COMMON, **CASES[CASE]),
    train_dataset=Stream() if CASE == "stream" else Texts(0, 100, noisy=CASE == "steps"),
    eval_dataset=Texts(100, 117),
    callbacks=callbacks,
)
if moments.PLAIN:
    result = trainer.train()
else:
    with resilient(trainer):
        result = trainer.train()
state = trainer.state
diary.finish(
    trainer.model,
    trainer.optimizer,
    trainer.lr_scheduler,
    metrics=json.dumps(without_times(result.metrics), sort_keys=True),
    step=state.global_step,
    best=state.best_metric,
    best_folder=Path(state.best_model_checkpoint or "").name,
    history=json.dumps([without_times(line) for line in state.log_history], sort_keys=True),
    operations=state.total_flos,
    tokens=state.num_input_tokens_seen,
    checkpoints=json.dumps(told_by(diary.FOLDER / "out")) if diary.RANK == 0 else "",
)
diary.leave()
