"""`Ranks`: the processes that write or load one checkpoint together, and how they tell each other what went wrong.

Rules:

1. Ranks tell each other of a failure before the next phase begins, so that nobody waits for one that gave up.
2. Where there is no default group, this process is the only rank.
3. torch's collectives of objects need numpy; those of tensors, which are used here, do not.
"""

import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.gathering import gather
from taskd.adaptors.training.tree import bytes_of
from taskd.errors import RestoreError
from taskd.wire.kinds import WorldRank

_log = logging.getLogger("taskd.adaptors.training.checkpoints.checkpoint")
T = TypeVar("T")
OF_PARTS = (RuntimeError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RestoreError)


class RankFailures(Exception):  # noqa: N818 - it is what several ranks have met, not an error of its own
    """At least one rank could not do its part. `by_rank` says who, and why."""

    def __init__(self, by_rank: dict[WorldRank, str]) -> None:
        super().__init__("; ".join(f"rank {rank}: {why}" for rank, why in sorted(by_rank.items())[:3]))
        self.by_rank = by_rank


class Ranks:
    """The ranks of the default group. Each method is collective, but for `warn`; RuntimeError if a rank has died."""

    def __init__(self) -> None:
        self._together = dist.is_available() and dist.is_initialized()
        self.rank = WorldRank(dist.get_rank() if self._together else 0)
        self.size = dist.get_world_size() if self._together else 1

    def gather(self, mine: T) -> list[T]:
        """Return what each rank gave."""
        if not self._together:
            return [mine]
        own = _tensors([mine])[0]
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return list(map(_object, everyone))

    def collect(self, mine: T) -> list[T]:
        """Return what each rank gave on rank 0; nothing on the others."""
        if not self._together:
            return [mine]
        own = _tensors([mine])[0]
        everyone = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(own, everyone)
        return list(map(_object, everyone or []))

    def share(self, given: Sequence[T]) -> T:
        """Return what rank 0 gives this one; the others give nothing."""
        if not self._together:
            return given[0]
        everyone = _tensors(given if self.rank == 0 else [None])
        own = torch.empty_like(everyone[0])
        dist.scatter(own, everyone if self.rank == 0 else None)
        mine: T = _object(own)
        return mine

    def do(self, act: Callable[[], T]) -> T:
        """Let each rank act, and return this one's own result.

        Raises:
            Failures: on all ranks, if it failed on one of them.
        """
        results, why = [], ""
        try:
            results = [act()]
        except OSError as error:
            why = str(error)
        except OF_PARTS as error:
            why = repr(error)
        by_rank = {WorldRank(rank): said for rank, said in enumerate(self.gather(why)) if said}
        if by_rank:
            raise RankFailures(by_rank)
        return results[0]

    def agree(self, *numbers: int) -> bool:
        """Tell whether all ranks gave the same numbers. A newcomer that sets itself up alone agrees with itself."""
        wanted = [*numbers, *(-number for number in numbers)]
        return self._lowest(wanted) == wanted

    def first(self, mine: bool) -> WorldRank | None:
        """Return the lowest rank on which it is true; None if there is none."""
        (lowest,) = self._lowest([self.rank if mine else self.size])
        return WorldRank(lowest) if lowest < self.size else None

    def warn(self, message: str, *arguments: object) -> None:
        """Warn once, not on each rank."""
        _log.log(logging.WARNING if self.rank == 0 else logging.DEBUG, message, *arguments)

    def _lowest(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        if self._together:
            tensor = tensor.to(torch.device(c10d._get_object_coll_device()))
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return [int(number) for number in tensor.tolist()]


def _tensors(things: Sequence[object]) -> list[torch.Tensor]:
    """Each as bytes, of one length on all ranks. Collective."""
    packed = list(map(pickle.dumps, things))
    room = max(size for (size,) in gather([max(map(len, packed))]))
    device = torch.device(c10d._get_object_coll_device())
    # In a set-up that is replayed the room is the record's, and what does not fit is not looked at.
    padded = [bytearray(data[:room].ljust(room, b"\0")) for data in packed]
    return [torch.frombuffer(data, dtype=torch.uint8).to(device) for data in padded]


def _object(data: torch.Tensor) -> Any:
    return pickle.loads(bytes_of(data))
