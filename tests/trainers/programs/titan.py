"""A small Llama on Python's own text with torchtitan: its trainer, its FSDP2, tensor parallel and pipelines.

TITAN_CASE: "fsdp", "tp" or "pp". torchtitan takes a GPU for granted: what stands in for it here is for this test alone.
"""

import os
import sys
import types

import torch
import torch._utils as torch_utils
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tests.scripts import diary
from tests.trainers.programs import moments

CASE = os.environ.get("TITAN_CASE", "fsdp")
NO_DEVICE = types.SimpleNamespace(
    set_device=lambda _device: None,
    get_device_name=lambda _device=None: "cpu",
    current_device=lambda: 0,
    get_device_properties=lambda _device: types.SimpleNamespace(total_memory=1 << 34),
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
    memory_stats=lambda _device=None: {},
    synchronize=lambda *_: None,
)
torch_utils._get_available_device_type = lambda: "cpu"  # torchtitan asks torch, and would take CUDA without an answer
vars(torch_utils)["_get_device_module"] = lambda _kind: NO_DEVICE
factor = FSDPModule.set_gradient_divide_factor


def divide(self, by: float) -> None:
    factor(self, by)
    self.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing as it sums


FSDPModule.set_gradient_divide_factor = divide  # type: ignore[assignment, method-assign]

SIZE, WORDS, STEPS = 24, 64, 14
# torchtitan reads the command line as it is imported.
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

from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.metrics import BaseLogger  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402


class Letters(BaseTokenizer):
    """A letter is a token."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % WORDS for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(64 + token) for token in tokens)

    def get_vocab_size(self) -> int:
        return WORDS


class Text(torch.utils.data.IterableDataset):
    """Python's Zen, again and again, from another place on each rank. It knows where it is."""

    def __init__(self, tokens: list[int], share: int, shares: int) -> None:
        self.tokens, self.at, self.by = tokens, share * SIZE, shares * SIZE

    def __iter__(self):
        while True:
            piece = [self.tokens[(self.at + number) % len(self.tokens)] for number in range(SIZE + 1)]
            self.at += self.by
            yield {"input": torch.tensor(piece[:-1])}, torch.tensor(piece[1:])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def loader(dp_world_size, dp_rank, tokenizer, job_config):
    import codecs
    import this

    text = tokenizer.encode(codecs.decode(this.s, "rot13"))
    size = job_config.training.local_batch_size
    return ParallelAwareDataloader(
        Text(text, dp_rank, dp_world_size), dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=size
    )


class Told(BaseLogger):
    """Tells what it is given, but for times and memory."""

    def log(self, metrics, step):
        told = {name: round(float(value), 6) for name, value in sorted(metrics.items()) if _is_exact(name)}
        moments.logged(step, str(told))

    def close(self):
        pass


def _is_exact(name: str) -> bool:
    return name in ("loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "n_tokens_seen", "lr")


class Watched(Trainer):
    """Says where it is."""

    def __init__(self, config):
        super().__init__(config)
        save = self.checkpointer.save
        self.metrics_processor.logger = Told()

        def saving(step, *args, **options):
            moments.moment("checkpoint")
            save(step, *args, **options)

        self.checkpointer.save = saving

    def train_step(self, data_iterator):
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


spec = get_train_spec()
spec.model_args = {"small": TransformerModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=WORDS)}
spec.build_tokenizer_fn = lambda _config: Letters()
spec.build_dataloader_fn = loader
spec.state_dict_adapter = None
register_train_spec("letters", spec)
if moments.PLAIN:
    main(Watched)
else:
    from taskd.titan import resilient

    main(resilient(Watched, backup_every=2))
