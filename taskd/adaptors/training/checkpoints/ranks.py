"""`Ranks`: the processes that write or load one checkpoint together, and their exchange of failures.

Rules:

1. Ranks report a failure to each other before the next phase begins, so nobody waits for a rank that gave up.
2. If there is no default group, this process is the only rank.
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


class RankFailures(Exception):  # noqa: N818 - a collection of several ranks' failures, not an error of its own
    """Failures of at least one rank to do its part. `by_rank` has the reason of each."""

    def __init__(self, by_rank: dict[WorldRank, str]) -> None:
        super().__init__("; ".join(f"rank {rank}: {why}" for rank, why in sorted(by_rank.items())[:3]))
        self.by_rank = by_rank


class Ranks:
    """The ranks of the default group. Each method except `warn` is collective; RuntimeError if a rank has died."""

    def __init__(self) -> None:
        self._together = dist.is_available() and dist.is_initialized()
        self.rank = WorldRank(dist.get_rank() if self._together else 0)
        self.size = dist.get_world_size() if self._together else 1

    def gather(self, mine: T) -> list[T]:
        """Return the values of all ranks."""
        if not self._together:
            return [mine]
        own = _tensors([mine])[0]
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return list(map(_object, everyone))

    def collect(self, mine: T) -> list[T]:
        """Return the values of all ranks on rank 0, and an empty list on the others."""
        if not self._together:
            return [mine]
        own = _tensors([mine])[0]
        everyone = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(own, everyone)
        return list(map(_object, everyone or []))

    def share(self, given: Sequence[T]) -> T:
        """Return the value that rank 0 gives to this rank. The `given` of other ranks is ignored."""
        if not self._together:
            return given[0]
        everyone = _tensors(given if self.rank == 0 else [None])
        own = torch.empty_like(everyone[0])
        dist.scatter(own, everyone if self.rank == 0 else None)
        mine: T = _object(own)
        return mine

    def do(self, act: Callable[[], T]) -> T:
        """Run `act` on each rank, and return this rank's own result.

        Raises:
            RankFailures: on all ranks, if it failed on one of them.
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
        """Return whether all ranks gave the same numbers. A newcomer whose set-up runs alone agrees with itself."""
        wanted = [*numbers, *(-number for number in numbers)]
        return self._lowest(wanted) == wanted

    def first(self, mine: bool) -> WorldRank | None:
        """Return the lowest rank on which `mine` is true; None if there is none."""
        (lowest,) = self._lowest([self.rank if mine else self.size])
        return WorldRank(lowest) if lowest < self.size else None

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning on rank 0, and a debug message on the others."""
        _log.log(logging.WARNING if self.rank == 0 else logging.DEBUG, message, *arguments)

    def _lowest(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        if self._together:
            tensor = tensor.to(torch.device(c10d._get_object_coll_device()))
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return [int(number) for number in tensor.tolist()]


def _tensors(things: Sequence[object]) -> list[torch.Tensor]:
    """Return each thing as a tensor of its bytes, padded to one length on all ranks. Collective."""
    packed = list(map(pickle.dumps, things))
    room = max(size for (size,) in gather([max(map(len, packed))]))
    device = torch.device(c10d._get_object_coll_device())
    # In a replayed set-up `room` comes from the record, and a value that does not fit is never read.
    padded = [bytearray(data[:room].ljust(room, b"\0")) for data in packed]
    return [torch.frombuffer(data, dtype=torch.uint8).to(device) for data in padded]


def _object(data: torch.Tensor) -> Any:
    return pickle.loads(bytes_of(data))
