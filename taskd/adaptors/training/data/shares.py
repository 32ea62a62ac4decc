"""The global batch in shares, and the shares that this rank works at.

Rules:

1. The global batch has as many shares as the full world has ranks (replicas), whatever the size of the present world.
   In a world of W ranks, rank r works at the shares r, r + W, r + 2 W … one after the other.
2. DDP averages over W ranks. The script multiplies a share's loss, the mean over its samples, by W / replicas: the
   gradients are then the mean over all shares, as in the full world.
3. DDP communicates in the last share only. The iterator ensures this, also when it is left early. A wrapper that the
   script silences itself, by `no_sync()` within a share or around the loop, stays silent in the last share too.
4. With a seed, a share has the random numbers of the rank that works at it in the full world. If a step has several
   loops over the shares, each share continues where the loop before left it.
5. On a mesh, the ranks of another row work at the shares of a whole absent row (`groups.rows`), rank by rank. All ranks
   that work together then have equally many shares. FSDP2 all-reduces over rows in the last share only.
6. In the full world each rank has one share, of scale 1, and its loop needs no further work.
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
        scale: factor of the share's mean loss.
        last: whether it is this rank's last share of the step.
    """

    index: int
    count: int
    scale: float
    last: bool


class Shares:
    """Shares of one rank in the present world; those of torch's default group before any world is entered.

    Args:
        seeds: seeds of the state, if it has any.

    Attributes:
        used: whether the script has requested its shares.
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
        """Job ranks in a world that was formed after a fault, and the number of replicas; None before a fault."""

    def lie_on(self, rows: MeshRows | None) -> None:
        """Record the rows of the mesh that the state lies on; None if it lies on no mesh."""
        if rows is not None:
            self._rows, self._shares = rows, None

    def enter(
        self, rank: WorldRank, world_size: int, replicas: int, parts: Parts, members: Sequence[JobRank] = ()
    ) -> None:
        """Enter a world: this process has rank `rank` of `world_size`, and the global batch is made for `replicas`.

        `parts` lists the wrappers, which are not kept alive here. `members` are the ranks of the job that are
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
        """Warn if `ranks` ranks work at the shares of more replicas and the script does not request its shares."""
        if replicas > ranks and not self.used:
            _log.warning(
                "%d of %d ranks go on, and the script does not use state.shares(): the global batch is smaller",
                ranks,
                replicas,
            )

    def of_step(self, step: int) -> Iterable[Share]:
        """Return the shares of the step that follows `step` committed ones.

        Raises:
            ConfigError: during the iteration, in a smaller world: the script has switched on the communication of a
                share that is not the last.
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
        self._let_go()  # wrappers of a loop that was left, while its iterator is still held somewhere
        # Wrappers that do not communicate now are inside of the script's own `no_sync()`: it controls them.
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
    """Random numbers of the shares of one step, in a smaller world."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._capture = RngCapture()
        self._step = -1
        self._left: dict[int, list[bytes]] = {}

    def forget(self) -> None:
        """Forget where shares were left: a step that has begun is done again from its beginning."""
        self._left.clear()

    def begin(self, index: int, rank: int, step: int) -> None:
        """Set the numbers of share `index` of rank `rank`: from its beginning, or from where an earlier loop left."""
        if step != self._step:
            self._step = step
            self.forget()
        self._seeds.sow(rank, step)
        if index in self._left:
            self._capture.restore(self._left[index])

    def end(self, index: int) -> None:
        """Record where the share leaves its random numbers."""
        self._left[index] = [bytes(state) for state in self._capture.capture()]


def shares_of(rank: WorldRank, world_size: int, replicas: int) -> tuple[Share, ...]:
    """Return the shares of one rank."""
    own = range(rank, replicas, world_size)
    return tuple(Share(index, replicas, world_size / replicas, last=index == own[-1]) for index in own)


def _of_rows(rows: MeshRows, slot: JobRank, members: Sequence[JobRank]) -> tuple[tuple[Share, ...], dict[int, int]]:
    """Return the shares of one rank of a mesh, and the rank that has each of them in the full world."""
    own, count, present = rows.shares(slot, members)
    shares = tuple(Share(index, count, present, last=at + 1 == len(own)) for at, (index, _) in enumerate(own))
    return shares, dict(own)


def _synchronise(wrappers: Iterable[DistributedDataParallel], wanted: bool) -> None:
    for wrapper in wrappers:
        wrapper.require_backward_grad_sync = wanted  # the attribute that `no_sync()` sets


def _expect_silent(wrappers: Iterable[DistributedDataParallel], share: Share) -> None:
    """Raise `ConfigError` if a wrapper communicates in this share: ranks with fewer shares would wait, or mismatch."""
    for wrapper in wrappers:
        if wrapper.require_backward_grad_sync:
            raise ConfigError(
                f"require_backward_grad_sync of the DistributedDataParallel made at {line_of(wrapper)} was switched on "
                f"in share {share.index} of {share.count}, which is not the last of this rank; expected it to stay "
                "off: use model.no_sync() for all micro-batches but the last, or set it to share.last and …"
            )


_ALONE = shares_of(WorldRank(0), 1, 1)
