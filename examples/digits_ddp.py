"""Train a small CNN on scikit-learn's handwritten digits, data parallel, to over 95 % test accuracy.

    torchrun --nproc-per-node 4 examples/digits_ddp.py

With `TASKD_PROCESS_ENABLE=on` the run survives `kill -9` of any rank, and ends with the weights of an undisturbed run.
Without it the same file trains under plain torchrun. An exact resume requires three things of a script:

1. The global batch consists of shares, one for each rank. A share depends only on its number and the step. So a
   repeated step uses the same samples, and so does a step of fewer ranks, each with more shares.
2. The dropout comes from `seed=`: it depends only on seed, share and step.
3. The loop starts at `state.step`, and every collective is inside the resilient function, the last report too.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd

BATCH_SIZE = 16  # per share
TEST_SAMPLES = 360


def build_network() -> nn.Module:
    """Return a CNN that maps an 8 x 8 grey image to 10 scores."""
    # GroupNorm, not BatchNorm: running statistics differ from rank to rank between two steps. A rank restored from
    # a peer would continue with the peer's statistics, and the weights would drift apart in the last bits.
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 4 * 4, 10),
    )


def load_data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images scaled to 0..1 with their labels: the training part and the test part, always split alike."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(digits, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return (images[train], labels[train]), (images[test], labels[test])


def steps_per_epoch(samples: int, shares: int) -> int:
    """Return the number of whole global batches in one pass over the data."""
    return samples // (BATCH_SIZE * shares)


def batch_indices(step: int, samples: int, share: int, shares: int) -> Tensor:
    """Return the indices of the training samples in one share of a step's batch.

    The samples are shuffled anew each epoch, and no sample occurs twice in an epoch.
    """
    epoch, batch = divmod(step, steps_per_epoch(samples, shares))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(1 + epoch))
    first = (batch * shares + share) * BATCH_SIZE
    return order[first : first + BATCH_SIZE]


def fingerprint(network: nn.Module) -> str:
    """Return the SHA-256 of every parameter's bytes: equal only if the weights are equal bit for bit."""
    digest = hashlib.sha256()
    for parameter in network.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    return digest.hexdigest()


def report(network: nn.Module, test: tuple[Tensor, Tensor], step: int, out: Path | None) -> None:
    """Compare the weights of all ranks and measure the accuracy; rank 0 prints and writes the outcome."""
    ranks: list[tuple[int, str]] = [(0, "")] * dist.get_world_size()
    dist.all_gather_object(ranks, (os.getpid(), fingerprint(network)))
    network.eval()
    with torch.no_grad():
        accuracy = (network(test[0]).argmax(1) == test[1]).float().mean().item()
    # A barrier carries no tensors. Without it torch 2.13 under plain torchrun aborts in 1 run of 7: the process ends
    # while a thread of gloo still frees the tensors of the last collective. taskd waits for that thread.
    dist.barrier()
    if dist.get_rank() != 0:
        return
    pids = [pid for pid, _ in ranks]
    sha256 = ranks[0][1]
    equal = all(other == sha256 for _, other in ranks)
    print(f"accuracy {accuracy:.4f} after {step} steps on {len(pids)} ranks", flush=True)
    print(f"weights {'equal on all ranks' if equal else 'DIFFER between ranks'}, sha256 {sha256}", flush=True)
    if out is not None:
        outcome = {"accuracy": accuracy, "sha256": sha256, "ranks_equal": equal, "steps": step, "pids": pids}
        out.write_text(json.dumps(outcome) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=12, help="passes over the training data (default 12)")
    length.add_argument("--steps", type=int, help="optimizer steps, instead of --epochs")
    parser.add_argument("--step-ms", type=float, default=0, help="a step takes at least this long (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where rank 0 writes the outcome")
    return parser.parse_args()


def main() -> None:
    """Train as one rank."""
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    (images, labels), test_data = load_data()
    steps = args.steps or args.epochs * steps_per_epoch(len(labels), dist.get_world_size())

    torch.manual_seed(0)
    network = build_network()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    state = taskd.TrainState(seed=1, model=model, optimizer=optimizer, scheduler=scheduler)

    @taskd.resilient(state)
    def train() -> None:
        model.train()
        while state.step < steps:
            started_s = time.monotonic()
            optimizer.zero_grad()
            for share in state.shares():
                chosen = batch_indices(state.step, len(labels), share.index, share.count)
                loss = cross_entropy(model(images[chosen]), labels[chosen])
                (loss * share.scale).backward()
            optimizer.step()
            scheduler.step()
            state.commit()
            if dist.get_rank() == 0 and state.step % 50 == 0:
                print(f"step {state.step} of {steps}: loss {loss.item():.4f}", flush=True)
            time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - started_s)))
        report(network, test_data, state.step, args.out)

    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
