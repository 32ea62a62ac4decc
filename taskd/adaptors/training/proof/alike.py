"""Comparison of values that were alike on all ranks before a fault: they must be so after the recovery.

A rank that a fault has replaced may go on with another place in the data, or draw a random number more than its peers,
and it would pass unnoticed. So all ranks count how many have each value, before a fault and after it.

Rules:

1. Behind the same commit each rank adds one to a counter in the store of the default group, for each kind and its value
   there. A value that all ranks have is counted as often as there are ranks. Each rank reads the counters behind its
   next commit. By then every rank has counted, for the step's collectives have let it pass. No rank waits for another.
   After a recovery, each rank records its values behind the first commit and counts them behind the second: a recovery
   lasts until that first commit.
2. They count behind an early commit, behind the first evaluation and as a second pass over the data begins; after each
   recovery again. A kind counts at such a moment if it was alike there each time before the first fault. If this
   process has no count of a moment from before a fault, its first count afterwards serves instead.
3. Besides the random numbers the number of draws is compared: ranks have seeds of their own.
4. If something differs after a recovery, the training is not exact: all processes start anew, without counting a
   restart.
"""

import hashlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from taskd.adaptors.groups.tables import default_store
from taskd.adaptors.training.fingerprints import of_random_numbers
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.samples import sample
from taskd.adaptors.training.proof.step_digests import hyperparameters
from taskd.adaptors.training.recovery import StateRecovery

logger = logging.getLogger(__name__)
_EARLY: Final = 4
"""Commit of this process behind which it counts."""


class CountMoment(Enum):
    """Moment at which ranks count."""

    EARLY = "an early step"
    EVALUATION = "an evaluation"
    PASS = "the beginning of another pass over the data"


class _Taken(NamedTuple):
    """Values of a rank at a commit: the digest of each kind, and the name under which ranks count it."""

    moments: set[CountMoment]
    name: str
    kinds: dict[str, str]


class AlikeRanks:
    """Counts of one training function, in one process.

    Args:
        recovery: recovery of its state.
        prefix: returns the beginning of the names of all keys of the present world.
        differs: called with the difference after a recovery, in words.
        watch_commit: has `committed` called at the next commit.
    """

    def __init__(
        self,
        recovery: StateRecovery,
        prefix: Callable[[], str],
        differs: Callable[[str], None],
        watch_commit: Callable[[], None],
    ) -> None:
        self._recovery, self._prefix = recovery, prefix
        self._differs, self._watch_commit = differs, watch_commit
        self._after_fault = False
        self._alike: dict[CountMoment, frozenset[str]] = {}
        """Kinds that were alike at each moment."""
        self._commits = 0
        self._left = set(CountMoment)
        self._due: set[CountMoment] = set()
        self._taken: _Taken | None = None
        """Values that are recorded, but not counted yet."""
        self._counted: list[_Taken] = []
        """Values that were counted behind the last commit, but not judged yet."""
        recovery.steps.evaluations.end.append(self._on_evaluation)
        recovery.parts.epochs.again.append(self._on_pass)

    @property
    def owes(self) -> bool:
        """True if it must be called at the next commit."""
        waits = self._taken is not None or bool(self._counted) or bool(self._due)
        return waits or self._commits < _EARLY

    def enter(self, *, after_fault: bool) -> None:
        """Start over: the training function is about to be called."""
        self._taken, self._counted = None, []
        self._due, self._commits, self._left = set(), 0, set(CountMoment)
        self._after_fault = after_fault

    def committed(self) -> None:
        """Judge, count and record values behind a commit, as they are due."""
        self._commits += 1
        counted, self._counted = self._counted, []
        for one in counted:
            self._judge(one)
        self._count()
        if self._commits == (1 if self._after_fault else _EARLY):
            self._due.add(CountMoment.EARLY)
        if self._due:
            moments, self._due = self._due, set()
            self._left -= moments
            self._take(moments)
            if not (self._after_fault and self._commits == 1):
                self._count()

    def close(self) -> None:
        """Stop counting: the training function was left for good."""
        for calls, call in (
            (self._recovery.steps.evaluations.end, self._on_evaluation),
            (self._recovery.parts.epochs.again, self._on_pass),
        ):
            if call in calls:
                calls.remove(call)

    # Inside.

    def _on_evaluation(self) -> None:
        self._demand(CountMoment.EVALUATION)

    def _on_pass(self) -> None:
        self._demand(CountMoment.PASS)

    def _demand(self, moment: CountMoment) -> None:
        if moment in self._left and self._commits:
            self._due.add(moment)
            self._watch_commit()

    def _take(self, moments: set[CountMoment]) -> None:
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        try:
            self._taken = _Taken(moments, f"{self._prefix()}/{self._recovery.step}", dict(_kinds(self._recovery.parts)))
        except Exception:  # a failed comparison must not end the training
            logger.info("the ranks could not be compared", exc_info=True)

    def _count(self) -> None:
        taken, self._taken = self._taken, None
        if taken is None:
            return
        try:
            for key in ("", *map("/".join, taken.kinds.items())):
                default_store().add(f"{taken.name}/{key}", 1)
        except Exception:
            logger.info("the ranks could not be compared", exc_info=True)
            return
        self._counted.append(taken)

    def _judge(self, counted: "_Taken") -> None:
        try:
            store, world_size, name = default_store(), dist.get_world_size(), counted.name
            if store.add(f"{name}/", 0) != world_size:
                return  # not all ranks have come to this moment at this step
            kinds = counted.kinds.items()
            alike = {kind for kind, text in kinds if store.add(f"{name}/{kind}/{text}", 0) == world_size}
        except Exception:
            logger.info("the ranks could not be compared", exc_info=True)
            return
        for moment in sorted(counted.moments, key=lambda one: one.name):
            known = self._alike.get(moment)
            if known is None or not self._after_fault:
                self._alike[moment] = frozenset(alike if known is None else known & alike)
            elif lost := sorted(known - alike):
                self._differs(f"{lost[0]}: alike on all ranks behind {moment.value} before a fault, and not after it")
                return


def _kinds(parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield each kind, with a digest of this rank's value."""
    yield "the number of draws", _short(list(_draws()))
    yield "the random numbers", _short(of_random_numbers())
    if parts.epochs.used:
        yield "the epoch", str(parts.epochs.now)
    if parts.positions:
        yield "the place in the data", _short(sorted(parts.pack_positions().items()))
    yield "the hyperparameters", _short(list(hyperparameters(parts)))
    yield "the buffers and averages", _short(list(_followers(parts)))


def _draws() -> Iterator[Any]:
    """Yield each generator's position in its present block of numbers: that does not depend on its seed."""
    yield bytes(torch.default_generator.get_state()[8:24].tolist())
    yield random.getstate()[1][-1]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield numpy.get_state()[2]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield bytes(torch.cuda.get_rng_state()[8:16].tolist())


def _followers(parts: Parts) -> Iterator[bytes]:
    trained = {id(one) for one in parts.trained()}
    for module in parts.modules:
        for tensor in (*module.buffers(), *(one for one in module.parameters() if id(one) not in trained)):
            if tensor.device.type == "cpu":
                yield sample(tensor)


def _short(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
