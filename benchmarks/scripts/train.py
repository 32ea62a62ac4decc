"""The job that the benchmarks disturb: a small perceptron with AdamW, data parallel over gloo.

Rules:

1. The batch of a step is a function of step and rank. Dropout makes the random numbers matter.
2. Every rank appends its events to `RECORD/rank-R.log`, a line at a time: `start PID TIME`, then `step PID STEP TIME`
   for each committed step. Times are CLOCK_MONOTONIC seconds.
3. With `--checkpoint` rank 0 saves every step, and all ranks begin from the saved step, as stock torchrun requires.
4. Training ends at `--steps`, or at the step in the file `--stop-file` once that file is there. The writer of the file
   names a step that no rank can have reached.
5. With `--rss-gib` each process touches that much memory, 64 MiB a step from its fifth on: its set-up is not longer.
6. With `--objects` each process makes that many Python objects in its set-up. Its collector tracks them. The process
   keeps them, or drops them at once with `--drop`. A line `built PID SECONDS` has the time that this took.
"""

import argparse
import gc
import hashlib
import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import taskd

WIDTH = 256
BATCH_SIZE = 16
NO_LIMIT = 1 << 62
PAGE_BYTES = 4096
LIGHT_STEPS = 5
TOUCHED_BYTES = 1 << 26


class StepLog:
    """Log of one rank of the job: its events with their times."""

    def __init__(self, directory: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(directory / f"rank-{rank}.log", flags, 0o600)
        self._pid = os.getpid()

    def started(self) -> None:
        """Log that this process is about to set up."""
        os.write(self._file, f"start {self._pid} {time.monotonic():.6f}\n".encode())

    def built(self, seconds: float) -> None:
        """Log the time in which this process has made its objects."""
        os.write(self._file, f"built {self._pid} {seconds:.6f}\n".encode())

    def committed(self, step: int) -> None:
        """Log that this process has committed `step`."""
        os.write(self._file, f"step {self._pid} {step} {time.monotonic():.6f}\n".encode())


def build_network() -> nn.Module:
    """Return a network of about 260,000 parameters, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))


def build_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW, whose state is twice the model."""
    return torch.optim.AdamW(network.parameters(), lr=1e-3)


def batch(step: int, rank: int) -> Tensor:
    """Return the batch of `rank` in `step`."""
    return torch.randn(BATCH_SIZE, WIDTH, generator=torch.Generator().manual_seed(step * 1000 + rank))


def pace(started_s: float, step_ms: float) -> None:
    """Let a step last at least `step_ms`, as a step that waits for an accelerator does."""
    time.sleep(max(0.0, started_s + step_ms / 1000 - time.monotonic()))


def save(path: Path, step: int, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint."""
    fresh = path.with_suffix(".new")
    torch.save({"step": step, "network": network.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
    fresh.replace(path)


def load(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go back to the checkpoint, if there is one. Return its step, or 0."""
    if not path.exists():
        return 0
    saved: dict[str, Any] = torch.load(path)
    network.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


class Ballast:
    """Memory that a process holds, in small pages, as most of a process's is."""

    def __init__(self, gib: float) -> None:
        self._bytes = int(gib * (1 << 30))
        self._steps = 0
        self._memory: mmap.mmap | None = None
        self._touched = 0

    def committed(self) -> None:
        """Count one more step of this process. From the fifth on, touch a part of the memory."""
        self._steps += 1
        if self._steps < LIGHT_STEPS or self._touched >= self._bytes:
            return
        if self._memory is None:
            self._memory = mmap.mmap(-1, self._bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        end = min(self._touched + TOUCHED_BYTES, self._bytes)
        places = range(self._touched, end, PAGE_BYTES)
        self._memory[places.start : places.stop : PAGE_BYTES] = bytes([1]) * len(places)
        self._touched = end


def build_objects(count: int, log: StepLog, *, drop: bool) -> list[list[Any]]:
    """Make `count` containers, and age them in the collector: it does not come back to old ones by itself."""
    started_s = time.monotonic()
    gc.disable()
    objects: list[list[Any]] = [[] for _ in range(count)]
    gc.enable()
    gc.collect()
    if drop:
        objects.clear()
    log.built(time.monotonic() - started_s)
    return objects


def last_step(path: Path) -> int:
    """Return the step at which to stop; `NO_LIMIT` as long as the file is not there."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return NO_LIMIT


def report(network: nn.Module, step: int, out: Path) -> None:
    """Compare the weights of all ranks; rank 0 writes the outcome."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    dist.barrier()  # see examples/digits_ddp.py
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"steps": step, "sha256": digests[0], "ranks_equal": len(set(digests)) == 1}) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True, metavar="DIRECTORY", help="of the ranks' logs")
    parser.add_argument("--steps", type=int, default=NO_LIMIT, help="steps to train (default: until killed)")
    parser.add_argument("--stop-file", type=Path, help="file that will hold the last step")
    parser.add_argument(
        "--step-ms", type=float, default=0, help="least duration of a step until the stop file is there"
    )
    parser.add_argument("--checkpoint", type=Path, help="saved by rank 0 after every step, loaded by all at the start")
    parser.add_argument("--rss-gib", type=float, default=0, help="memory of each process (default: what it needs)")
    parser.add_argument("--objects", type=int, default=0, help="containers that each process holds (default 0)")
    parser.add_argument("--drop", action="store_true", help="drop the objects again before the training")
    parser.add_argument("--out", type=Path, help="where rank 0 writes the outcome")
    return parser.parse_args()


def main() -> None:
    """Run one rank."""
    args = arguments()
    log = StepLog(args.record, int(os.environ["RANK"]))
    log.started()
    _objects = build_objects(args.objects, log, drop=args.drop) if args.objects else []
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = build_network()
    optimizer = build_optimizer(network)
    model = DistributedDataParallel(network)
    torch.manual_seed(1 + rank)

    state = taskd.TrainState(model=model, optimizer=optimizer)
    if args.checkpoint is not None:
        state.step = load(args.checkpoint, network, optimizer)

    ballast = Ballast(args.rss_gib)

    @taskd.resilient(state)
    def train() -> None:
        end = args.steps
        while state.step < end:
            if args.stop_file is not None and end == NO_LIMIT:
                end = last_step(args.stop_file)
            started_s = time.monotonic()
            optimizer.zero_grad()
            model(batch(state.step, rank)).square().mean().backward()
            optimizer.step()
            state.commit()
            log.committed(state.step)
            ballast.committed()
            if args.checkpoint is not None and rank == 0:
                save(args.checkpoint, state.step, network, optimizer)
            if args.stop_file is None or end == NO_LIMIT:
                pace(started_s, args.step_ms)
        if args.out is not None:
            report(network, state.step, args.out)

    train()
    dist.destroy_process_group()
    if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
        os._exit(0)  # plain torch now and then aborts in a process that ends with its groups; torchrun restarts that


if __name__ == "__main__":
    main()
