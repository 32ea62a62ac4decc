"""The global batch in shares, and which of them this rank works at.

Rules:

1. The global batch is made of as many shares as the full world has ranks (replicas), whatever the present world has.
   In a world of W ranks, rank r works at the shares r, r + W, r + 2 W … one after the other.
2. DDP averages over W ranks. A share's loss, the mean over its samples, is to be multiplied by W / replicas: the
   gradients are then the mean over all shares, as in the full world.
3. DDP communicates in the last share only. The iterator sees to that, also when it is left early. What the script keeps
   from communicating itself, by `no_sync()` within a share or around the loop, does not communicate in the last either.
4. With a seed, a share has the numbers of the rank that works at it in the full world. If a step has several loops over
   the shares, each share goes on in the next one where it was left.
5. Where the state lies on a mesh, the shares of a whole row (`groups.rows`) that is absent are another row's, rank by
   rank: all ranks that work together have equally many. FSDP2 all-reduces over rows in the last share only.
6. In the full world there is one share, of scale 1, and nothing is done for it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.rows import MeshRows
from taskd.adaptors.groups.wrappers import line_of
from taskd.adaptors.training.inflight.fsdp2 import Reductions, sharded_modules
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.rng import RngCapture
from taskd.adaptors.training.positions.seeds import Seeds
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank, WorldRank

_log = logging.getLogger(__name__)


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

    Args:
        seeds: those of the state, if it has any.

    Attributes:
        used: whether the script has asked for them.
    """

    def __init__(self, seeds: Seeds | None) -> None:
        self._numbers = None if seeds is None else _Numbers(seeds)
        self._parts: Parts | None = None
        self._shares: tuple[Share, ...] | None = None
        self._sources: dict[int, int] = {}
        self._rows: MeshRows | None = None
        self._full = True
        self._held: WeakSet[DistributedDataParallel] = WeakSet()
        self._reductions: Reductions | None = None
        self.used = False
        self.present: tuple[Sequence[JobRank], int] | None = None
        """The ranks of the job in a world that was formed after a fault, and how many it has."""

    def lie_on(self, rows: MeshRows | None) -> None:
        """The state lies on a mesh, with these rows; None if it does not."""
        if rows is not None:
            self._rows, self._shares = rows, None

    def enter(
        self, rank: WorldRank, world_size: int, replicas: int, parts: Parts, members: Sequence[JobRank] = ()
    ) -> None:
        """This process has the rank `rank` of `world_size` now, and the global batch is made for `replicas`.

        `parts` tell which wrappers there are: they are not kept alive here. `members` are the ranks of the job that are
        present.
        """
        self._parts = parts
        self.present = (members, replicas) if members else None
        self._shares, self._sources = shares_of(rank, world_size, replicas), {}
        if self._rows is not None and members:
            self._shares, self._sources = _of_rows(self._rows, members[rank], members)
        self._full = world_size == replicas
        self._put_back_reductions()
        self._held = WeakSet()  # a loop that was interrupted, and dies late, leaves them alone
        if self._numbers is not None:
            self._numbers.forget()

    def tell_smaller(self, ranks: int, replicas: int) -> None:
        """Say so if so many ranks work at the shares of more, and the script does not ask for them."""
        if replicas > ranks and not self.used:
            _log.warning(
                "%d of %d ranks go on, and the script does not use state.shares(): the global batch is smaller",
                ranks,
                replicas,
            )

    def of_step(self, step: int) -> Iterable[Share]:
        """The shares of the step that follows `step` committed ones.

        Raises:
            ConfigError: while they are gone through, in a smaller world: the script has switched on the communication
                of a share that is not the last.
        """
        self.used = True
        mine = self._shares
        if mine is None:
            mine = self._of_default_group()
        return mine if self._full else self._one_by_one(mine, step)

    def _of_default_group(self) -> tuple[Share, ...]:
        if not dist.is_available() or not dist.is_initialized():
            return _ALONE
        rank, world_size = WorldRank(dist.get_rank()), dist.get_world_size()
        self._shares = shares_of(rank, world_size, world_size)
        if self._rows is not None:
            self._shares, self._sources = _of_rows(self._rows, JobRank(rank), list(map(JobRank, range(world_size))))
        return self._shares

    def _one_by_one(self, mine: tuple[Share, ...], step: int) -> Iterator[Share]:
        self._let_go()  # of a loop that was left, and that somebody still holds
        # Those that do not communicate now are inside of `no_sync()`: they are its own.
        parts = self._parts
        assert parts is not None
        self._held = held = WeakSet(w for w in parts.wrappers() if w.require_backward_grad_sync)
        self._reductions = reductions = Reductions(sharded_modules(parts.modules))
        try:
            for share in mine:
                if self._numbers is not None:
                    self._numbers.begin(share.index, self._sources.get(share.index, share.index), step)
                _synchronise(held, share.last)
                reductions.switch(share.last)
                yield share
                if not share.last:
                    _expect_silent(held, share)
                if self._numbers is not None:
                    self._numbers.end(share.index)
        finally:
            if self._held is held:
                self._let_go()

    def _let_go(self) -> None:
        _synchronise(self._held, True)
        self._put_back_reductions()
        self._held = WeakSet()

    def _put_back_reductions(self) -> None:
        if self._reductions is not None:
            self._reductions.switch(True)
        self._reductions = None


class _Numbers:
    """The random numbers of the shares of one step, in a smaller world."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._capture = RngCapture()
        self._step = -1
        self._left: dict[int, list[bytes]] = {}

    def forget(self) -> None:
        """What has begun is done again from its beginning."""
        self._left.clear()

    def begin(self, index: int, rank: int, step: int) -> None:
        """Those of share `index`, which is `rank`'s: from its beginning, or from where an earlier loop has left it."""
        if step != self._step:
            self._step = step
            self.forget()
        self._seeds.sow(rank, step)
        if index in self._left:
            self._capture.restore(self._left[index])

    def end(self, index: int) -> None:
        """The share was worked at."""
        self._left[index] = [bytes(state) for state in self._capture.capture()]


def shares_of(rank: WorldRank, world_size: int, replicas: int) -> tuple[Share, ...]:
    """The shares of one rank."""
    own = range(rank, replicas, world_size)
    return tuple(Share(index, replicas, world_size / replicas, last=index == own[-1]) for index in own)


def _of_rows(rows: MeshRows, slot: JobRank, members: Sequence[JobRank]) -> tuple[tuple[Share, ...], dict[int, int]]:
    """The shares of one rank of a mesh, and the ranks whose they are in the full world."""
    own, count, present = rows.shares(slot, members)
    shares = tuple(Share(index, count, present, last=at + 1 == len(own)) for at, (index, _) in enumerate(own))
    return shares, dict(own)


def _synchronise(wrappers: Iterable[DistributedDataParallel], wanted: bool) -> None:
    for wrapper in wrappers:
        wrapper.require_backward_grad_sync = wanted  # what `no_sync()` sets


def _expect_silent(wrappers: Iterable[DistributedDataParallel], share: Share) -> None:
    """Ranks with one share would wait for the communication of those with two, or take part in a wrong one."""
    for wrapper in wrappers:
        if wrapper.require_backward_grad_sync:
            raise ConfigError(
                f"require_backward_grad_sync of the DistributedDataParallel made at {line_of(wrapper)} was switched on "
                f"in share {share.index} of {share.count}, which is not the last of this rank; expected it to stay "
                "off: use model.no_sync() for all micro-batches but the last, or set it to share.last and …"
            )


_ALONE = shares_of(WorldRank(0), 1, 1)
