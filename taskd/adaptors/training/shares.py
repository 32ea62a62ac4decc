"""The global batch in shares, and which of them this rank works at.

Rules:

1. The global batch is made of as many shares as the full world has ranks (replicas), whatever the present world has.
   In a world of W ranks, rank r works at the shares r, r + W, r + 2 W … one after the other.
2. DDP averages over W ranks. A share's loss, the mean over its samples, is to be multiplied by W / replicas: the
   gradients are then the mean over all shares, as in the full world.
3. DDP communicates in the last share only. The iterator sees to that, also when it is left early.
4. In the full world there is one share, of scale 1, and nothing is done for it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Wrappers = Callable[[], list[DistributedDataParallel]]


@dataclass(frozen=True, slots=True)
class Share:
    """One share of the global batch.

    Attributes:
        index: which share, from 0 to `count` - 1.
        count: shares of the global batch, on all ranks together.
        scale: what to multiply the share's mean loss with.
        last: whether it is this rank's last share of the step.
    """

    index: int
    count: int
    scale: float
    last: bool


class Shares:
    """The shares of one rank in the present world; before any is entered, in torch's default group.

    Attributes:
        used: whether the script has asked for them.
    """

    def __init__(self) -> None:
        self._wrappers: Wrappers = list
        self._shares: tuple[Share, ...] | None = None
        self._full = True
        self.used = False

    def enter(self, rank: int, world_size: int, replicas: int, wrappers: Wrappers) -> None:
        """This process has the rank `rank` of `world_size` now, and the global batch is made for `replicas`.

        `wrappers` tells those which there are: they are not kept alive here.
        """
        self._wrappers = wrappers
        self._shares = shares_of(rank, world_size, replicas)
        self._full = world_size == replicas

    def of_step(self, sow: Callable[[int], None] | None) -> Iterable[Share]:
        """The shares of one step. `sow`, if given, is called with the number of each share before it is worked at."""
        self.used = True
        mine = self._shares
        if mine is None:
            mine = self._of_default_group()
        return mine if self._full else self._one_by_one(mine, sow)

    def _of_default_group(self) -> tuple[Share, ...]:
        if not dist.is_available() or not dist.is_initialized():
            return _ALONE
        self._shares = shares_of(dist.get_rank(), dist.get_world_size(), dist.get_world_size())
        return self._shares

    def _one_by_one(self, mine: tuple[Share, ...], sow: Callable[[int], None] | None) -> Iterator[Share]:
        try:
            for share in mine:
                if sow is not None:
                    sow(share.index)
                self._synchronise(share.last)
                yield share
        finally:
            self._synchronise(True)

    def _synchronise(self, wanted: bool) -> None:
        for wrapper in self._wrappers():
            wrapper.require_backward_grad_sync = wanted  # what `no_sync()` sets


def shares_of(rank: int, world_size: int, replicas: int) -> tuple[Share, ...]:
    """The shares of one rank."""
    own = range(rank, replicas, world_size)
    return tuple(Share(index, replicas, world_size / replicas, last=index == own[-1]) for index in own)


_ALONE = shares_of(0, 1, 1)
