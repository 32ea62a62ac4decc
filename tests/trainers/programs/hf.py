"""A small GPT-2 on Python's own text with transformers' Trainer, as its documentation teaches.

HF_CASE names the arguments.
"""

import codecs
import os
import shutil
import subprocess
import sys
import this  # its text is the data

import torch
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.scripts import diary
from tests.trainers.programs import moments, place
from tests.trainers.programs.hf_told import Moments, Watched, finish, into_backward

if not moments.PLAIN:
    from taskd.hf import TaskdCallback, resilient

CASE = os.environ.get("HF_CASE", "steps")
TEXT = (codecs.decode(this.s, "rot13") * 3).encode()
LENGTH = 24


class Texts(torch.utils.data.Dataset):
    """Pieces of the text, with bytes as tokens. `noisy` ones are read with a little noise, as in augmentation."""

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
    """The same pieces, one after the other."""

    def __iter__(self):
        texts = Texts(0, 70)
        return (texts[index] for index in range(len(texts)))


class Trained(Watched, Trainer):
    """The trainer with records of its progress."""


COMMON = {
    "output_dir": str(diary.FOLDER / "out"),
    "use_cpu": place.ON_CPU,
    "ddp_backend": place.BACKEND,
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
    "first": {**STEPS, "max_steps": 3, "ddp_backend": None, "output_dir": os.environ.get("HF_FIRST")},
    "resume": {**STEPS, "num_train_epochs": 2},
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


def made_checkpoint() -> str:
    """Return a checkpoint of a former training, one for each rank. A process of its own makes it unless it exists."""
    folder = diary.FOLDER / f"first-{diary.RANK}"
    if not (folder / "made").exists():
        outer = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TASKD_PROCESS_ENABLE")
        env = {name: value for name, value in os.environ.items() if name not in outer}
        env |= {"HF_CASE": "first", "HF_FIRST": str(folder), "TRAINER_PLAIN": "1", "SCRIPT_FOLDER": str(folder)}
        env["SCENE_KILLS"] = ""
        folder.mkdir()
        subprocess.run([sys.executable, __file__], env=env, check=True)
        for rank in range(2):
            shutil.copy(folder / "checkpoint-3" / "rng_state.pth", folder / "checkpoint-3" / f"rng_state_{rank}.pth")
        (folder / "made").touch()
    return str(folder / "checkpoint-3")


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))


model.transformer.h[0].register_forward_hook(into_backward)
callbacks = [Moments(), *([] if moments.PLAIN else [TaskdCallback(backup_every=2 if CASE == "fsdp2" else None)])]
if CASE == "epochs":
    callbacks.append(EarlyStoppingCallback(early_stopping_patience=3))
trainer = Trained(
    model=model,
    args=TrainingArguments(**{**COMMON, **CASES[CASE]}),
    train_dataset=Stream() if CASE == "stream" else Texts(0, 100, noisy=CASE == "steps"),
    eval_dataset=Texts(100, 117),
    callbacks=callbacks,
)
checkpoint = made_checkpoint() if CASE == "resume" else None
if moments.PLAIN:
    result = trainer.train(resume_from_checkpoint=checkpoint)
else:
    with resilient(trainer):
        result = trainer.train(resume_from_checkpoint=checkpoint)
if CASE == "first":
    sys.exit()
finish(trainer, result)
