"""Records of the programs of Hugging Face's trainers."""

import hashlib
import json
from pathlib import Path

import torch
from transformers import TrainerCallback

from tests.scripts import diary
from tests.trainers.programs import moments

TIMES = ("runtime", "per_second")
_micro = [0]


class Watched:
    """Mixin before a trainer's class: records each micro-batch's loss, and the moment of a half-written checkpoint."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        diary.saw(f"{self.state.global_step + 1}.{_micro[0]}", loss)
        _micro[0] += 1
        return loss

    def _save_scaler(self, output_dir):
        moments.moment("checkpoint")
        super()._save_scaler(output_dir)


class Moments(TrainerCallback):
    """Records the position of the training, and keeps the loggers' values."""

    def on_step_begin(self, args, state, control, **kwargs):
        _micro[0] = 0
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


def into_backward(module, args, output):
    """Record as a block's hook, at the gradient of its output, that the backward pass has come so far."""
    hidden = output[0] if isinstance(output, tuple) else output
    if hidden.requires_grad:
        hidden.register_hook(moments.into_backward)


def without_times(lines):
    """Return the logged values without those of a clock."""
    return {key: value for key, value in lines.items() if not any(time in key for time in TIMES)}


def told_by(folder: Path) -> dict[str, str]:
    """Return digests of the files of all checkpoints."""
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


def finish(trainer, result) -> None:
    """Record the results at the end of a program."""
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
