"""torchtitan on a CPU, and the letters that it learns: Python's own text, and a small Llama.

torchtitan requires a GPU: its stand-ins here are for tests and benchmarks alone. It reads the command line when it is
imported, and so does this module.
"""

import codecs
import this  # its text is the data
import types

import torch
import torch._utils as torch_utils
from torch.distributed.fsdp import FSDPModule

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
torch_utils._get_available_device_type = lambda: "cpu"  # torchtitan queries this, and would use CUDA without it
vars(torch_utils)["_get_device_module"] = lambda _kind: NO_DEVICE
factor = FSDPModule.set_gradient_divide_factor


def divide(self, by: float) -> None:
    factor(self, by)
    self.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing as it sums


FSDPModule.set_gradient_divide_factor = divide  # type: ignore[assignment, method-assign]

from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402

WORDS = 64


class Letters(BaseTokenizer):
    """A tokenizer with a token for each letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % WORDS for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(64 + token) for token in tokens)

    def get_vocab_size(self) -> int:
        return WORDS


class Text(torch.utils.data.IterableDataset):
    """Python's Zen, repeated, from another position on each rank. It keeps its position."""

    def __init__(self, tokens: list[int], size: int, share: int, shares: int) -> None:
        self.tokens, self.size, self.at, self.by = tokens, size, share * size, shares * size

    def __iter__(self):
        while True:
            piece = [self.tokens[(self.at + number) % len(self.tokens)] for number in range(self.size + 1)]
            self.at += self.by
            yield {"input": torch.tensor(piece[:-1])}, torch.tensor(piece[1:])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def loader(dp_world_size, dp_rank, tokenizer, job_config):
    text = tokenizer.encode(codecs.decode(this.s, "rot13"))
    data = Text(text, job_config.training.seq_len, dp_rank, dp_world_size)
    size = job_config.training.local_batch_size
    return ParallelAwareDataloader(data, dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=size)


spec = get_train_spec()
spec.model_args = {"small": TransformerModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=WORDS)}
spec.build_tokenizer_fn = lambda _config: Letters()
spec.build_dataloader_fn = loader
spec.state_dict_adapter = None
register_train_spec("letters", spec)
