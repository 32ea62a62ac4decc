"""A small Llama on Python's own text with torchtitan: its trainer, its FSDP2, tensor parallel and pipelines.

TITAN_CASE: "fsdp", "tp" or "pp".
"""

import os
import sys

from torch.distributed.tensor import DTensor

from tests.scripts import diary
from tests.trainers.programs import moments
from tests.trainers.programs.copies import await_copies

CASE = os.environ.get("TITAN_CASE", "fsdp")
SIZE, STEPS = 24, 14
# torchtitan reads the command line when it is imported.
degrees = {"fsdp": "data_parallel_shard", "tp": "tensor_parallel", "pp": "pipeline_parallel"}
sys.argv[1:] = [
    *("--model.name", "letters", "--model.flavor", "small", "--training.steps", str(STEPS)),
    *("--training.local_batch_size", "2", "--training.global_batch_size", "8" if CASE != "pp" else "4"),
    *("--training.seq_len", str(SIZE), "--lr_scheduler.warmup_steps", "3", "--optimizer.lr", "0.01"),
    *("--training.dataset", "letters", "--job.dump_folder", str(diary.FOLDER), "--metrics.log_freq", "2"),
    *(f"--parallelism.{degrees[CASE]}_degree", "2", "--debug.seed", "3", "--comm.init_timeout_seconds", "60"),
    *("--checkpoint.enable", "--checkpoint.interval", "5", "--checkpoint.folder", "kept"),
]
if CASE != "fsdp":
    sys.argv += ["--parallelism.data_parallel_shard_degree", "1"]
if CASE == "pp":
    sys.argv += ["--training.local_batch_size", "4", "--parallelism.pipeline_parallel_microbatch_size", "2"]

from tests.trainers.programs import titan_letters  # noqa: E402, F401 - it is what "letters" means

# isort: split
from torchtitan.components.metrics import BaseLogger  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402


class Told(BaseLogger):
    """A logger that records its values without times and memory."""

    def log(self, metrics, step):
        told = {name: round(float(value), 6) for name, value in sorted(metrics.items()) if _is_exact(name)}
        moments.logged(step, str(told))

    def close(self):
        pass


def _is_exact(name: str) -> bool:
    return name in ("loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "n_tokens_seen", "lr")


class Watched(Trainer):
    """The trainer with records of its progress."""

    def __init__(self, config):
        super().__init__(config)
        save = self.checkpointer.save
        self.metrics_processor.logger = Told()

        def saving(step, *args, **options):
            moments.moment("checkpoint")
            save(step, *args, **options)

        self.checkpointer.save = saving

    def train_step(self, data_iterator):
        await_copies()
        moments.at(self.step)
        super().train_step(data_iterator)

    def forward_backward_step(self, **given):
        moments.moment("part")
        loss = super().forward_backward_step(**given)
        told = loss.full_tensor() if isinstance(loss, DTensor) else loss
        diary.saw(f"{self.step} {given['labels'].sum()}", told)
        return loss

    def train(self):
        own = self.loss_fn

        def loss_fn(*args):
            loss = own(*args)
            loss.register_hook(moments.into_backward)
            return loss

        if CASE != "pp":  # the schedule has the loss function that it was made with
            self.loss_fn = loss_fn
        super().train()
        parts = {f"part {number}": part for number, part in enumerate(self.model_parts)}
        local = {
            f"{place} {name}": value.to_local() if hasattr(value, "to_local") else value
            for place, part in parts.items()
            for name, value in part.state_dict().items()
        }
        diary.finish(step=self.step, seen=self.ntokens_seen, weights=diary.fingerprint(local))


if moments.PLAIN:
    main(Watched)
else:
    from taskd.titan import resilient

    main(resilient(Watched, backup_every=2))
