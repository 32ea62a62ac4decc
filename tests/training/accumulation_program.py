"""One rank of four that accumulates gradients of its own micro-batches: `accumulation_program.py CASE RANK PORT`.

Ends with status 0 if all its checks hold.
"""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from tests.training.share_program import FULL, PORT, RANK, batch, join, main, make

MICRO = 3
SENT = [0]
Step = Callable[[TrainState], None]


def counted() -> TrainState:
    """Return a model of one bucket. `SENT` counts how often the bucket is communicated."""

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        SENT[0] += 1
        return allreduce_hook(dist.distributed_c10d._get_default_group(), bucket)

    state = make()
    state.model.register_comm_hook(None, hook)
    return state


def add_up(state: TrainState, rows: torch.Tensor, number: int, scale: float = 1.0) -> None:
    """Accumulate one micro-batch, as a script without shares does."""
    with state.model.no_sync() if number < MICRO - 1 else nullcontext():
        loss = state.model(rows).square().mean() / MICRO
        (loss * scale).backward()


def in_each_share(state: TrainState) -> None:
    """Run the micro-batches within the loop over the shares."""
    for share in state.shares():
        for number, rows in enumerate(batch(state.step, share.index).chunk(MICRO)):
            add_up(state, rows, number, share.scale)


def around_the_shares(state: TrainState) -> None:
    """Run the loop over the shares within `no_sync()`."""
    for number in range(MICRO):
        with state.model.no_sync() if number < MICRO - 1 else nullcontext():
            for share in state.shares():
                rows = batch(state.step, share.index).chunk(MICRO)[number]
                (state.model(rows).square().mean() / MICRO * share.scale).backward()


def without_shares(state: TrainState) -> None:
    for number, rows in enumerate(batch(state.step, RANK).chunk(MICRO)):
        add_up(state, rows, number)


def train_so(state: TrainState, step: Step, steps: int) -> None:
    """Train and require one communication per step."""
    for _ in range(steps):
        SENT[0] = 0
        state.optimizer.zero_grad()
        step(state)
        assert SENT[0] == 1, f"{SENT[0]} communications in step {state.step}"
        state.optimizer.step()
        state.commit()


def shrink_and_grow(step: Step) -> None:
    """Train with four ranks, then three, two, and four again. Require the weights of four ranks without shares."""
    state = counted()
    train_so(state, step, 2)
    clock = TCPStore("127.0.0.1", PORT, is_master=False)
    for generation, members in enumerate([(0, 2, 3), (0, 3)], 1):
        if RANK in members:
            join(state, generation, members, 2 * generation, ())
            train_so(state, step, 2)
            if clock.add(f"present-{generation}", 1) == len(members):
                clock.set(f"over-{generation}", "")
        clock.wait([f"over-{generation}"], timedelta(seconds=60))
    join(state, 3, FULL, 6, (1, 2))
    train_so(state, step, 2)
    undisturbed = counted()
    train_so(undisturbed, without_shares, 8)
    for mine, theirs in zip(state.model.parameters(), undisturbed.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def accumulated() -> None:
    shrink_and_grow(in_each_share)


def around() -> None:
    shrink_and_grow(around_the_shares)


def accumulated_in_full() -> None:
    """Require that in the full world both loops give the same bits as a script without shares."""
    plain, *others = [counted() for _ in range(3)]
    for state, step in zip((plain, *others), (without_shares, in_each_share, around_the_shares), strict=True):
        state._recovery.begin(JobRank(RANK))
        train_so(state, step, 4)
    for other in others:
        for mine, theirs in zip(other.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)


main(accumulated, around, accumulated_in_full)
