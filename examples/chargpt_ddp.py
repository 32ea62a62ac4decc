"""Train a small character GPT on the text of Python's own standard library, data parallel, and let it write a little.

    torchrun --nproc-per-node 2 examples/chargpt_ddp.py

Besides model, optimizer and scheduler, the script passes its data loader to taskd. A torchdata `StatefulDataLoader` can
save its position, so a recovered run continues at the same window of text. The file also runs under plain torchrun,
unchanged.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd

CORPUS_BYTES = 1_000_000
VOCABULARY = 128  # ASCII
CONTEXT = 64  # characters of text from which the model predicts
WIDTH = 96
HEADS = 4
LAYERS = 2
DROPOUT = 0.1
BATCH_SIZE = 16  # per rank


class Block(nn.Module):
    """Attention to earlier characters, then a feed-forward layer, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(DROPOUT),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed_forward(x)


class CharGPT(nn.Module):
    """Model that maps characters to scores of the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1])
        return self.head(self.blocks(self.characters(text) + self.places(places)))


class Windows(IterableDataset[Tensor]):
    """Endless random windows of the text. The n-th window of a rank is always the same; n is the data position."""

    def __init__(self, text: Tensor, rank: int) -> None:
        self.text = text
        self.rank = rank
        self.position = 0

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            generator = torch.Generator().manual_seed(self.position << 16 | self.rank)
            start = int(torch.randint(len(self.text) - CONTEXT, (), generator=generator))
            self.position += 1
            yield self.text[start : start + CONTEXT + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def load_text() -> Tensor:
    """Return the first megabyte of the standard library's top-level modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += bytes(byte for byte in path.read_bytes() if byte < VOCABULARY)
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8).long()


@torch.no_grad()
def write(network: nn.Module, prompt: str, length: int) -> str:
    """Return `prompt` and `length` characters that the network adds. The same network always adds the same ones."""
    network.eval()
    generator = torch.Generator().manual_seed(0)
    text = torch.tensor([list(prompt.encode("ascii"))])
    for _ in range(length):
        chances = network(text[:, -CONTEXT:])[0, -1].div(0.7).softmax(0)
        text = torch.cat([text, torch.multinomial(chances, 1, generator=generator)[None]], dim=1)
    return bytes(text[0].tolist()).decode("ascii")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default 300)")
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="characters to write (default 300)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where rank 0 writes the losses")
    return parser.parse_args()


def main() -> None:
    """Train as one rank."""
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    network = CharGPT()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    loader = StatefulDataLoader(Windows(load_text(), rank), batch_size=BATCH_SIZE)
    torch.manual_seed(1 + rank)  # dropout differs from rank to rank

    state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    losses: dict[int, float] = {}  # by this process: a new rank 0 has only those since its start

    @taskd.resilient(state)
    def train() -> None:
        model.train()
        batches = iter(loader)  # after a recovery: at the position of the last commit
        while state.step < args.steps:
            windows = next(batches)
            optimizer.zero_grad()
            scores = model(windows[:, :-1])
            loss = cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.commit()
            losses[state.step] = loss.item()
            if rank == 0 and state.step % 50 == 0:
                print(f"step {state.step} of {args.steps}: loss {loss.item():.3f}", flush=True)
        dist.barrier()  # no rank leaves while a peer still finishes the last step

    train()
    if rank == 0:
        print(write(network, "def ", args.sample), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps({"steps": state.step, "losses": losses}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
