"""Early inspections behind first commits: whether the state can be loaded, and which state is outside of it.

Rules:

1. Before the first step the paths of existing values are recorded. There are four walks: behind two early commits,
   behind the first evaluation or a later commit if none has come by then, and behind the first commit of the second
   pass over the data.
2. If a fault comes before the last early walk, living ranks walk once more, for 0.2 s at most: a new process would lack
   the values that have changed since. No part is asked for its `state_dict()` there. They walk again behind the first
   commit after the recovery. A newcomer first walks behind its own first commit, for the next fault may leave it alone.
   If the job is past its first steps it walks behind the second: no recovery waits for that one.
3. Only ranks that begin with the job take values into the state, or compare their parts: they agree on it, and a
   newcomer takes part in no agreement.
4. A failure inside is one line in the log, and the training goes on. A commit of any other step pays nothing.
"""

import itertools
import logging
import sys
import time
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType
from typing import Final

import torch

from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.outside_state import Judge, OutsideState
from taskd.adaptors.training.proof.own_states import alike, differing
from taskd.adaptors.training.proof.reentry import ProofOutlook
from taskd.adaptors.training.proof.roots import Entered, Held, roots_of, weights_of
from taskd.adaptors.training.proof.tried import unloadable
from taskd.adaptors.training.proof.walk import SeenValue, Walk
from taskd.adaptors.training.recovery import StateRecovery
from taskd.runtime.worker.worker import allows_inexact

_log = logging.getLogger(__name__)
_EARLY: Final = (1, 2)
"""Commits of this process behind which it walks: values that are taken in then are proven in the third step."""
_LATEST: Final = 12
"""Commit behind which it walks too, if there was no evaluation before."""
_MOST: Final = 4
_LIMIT_S: Final = 1.0
_FIRST_S: Final = 0.2
_numbers: Final = itertools.count()


class EarlyLooks:
    """Early inspections of one training function.

    Args:
        refusals: refusals of the process.
        recovery: recovery of its state.
        look_again: has `committed` called at the next commit.
        proof: returns the prospect of the step that is done twice.
        joins: this process replaces another.
    """

    def __init__(
        self,
        refusals: Refusals,
        recovery: StateRecovery,
        look_again: Callable[[], None],
        proof: Callable[[], ProofOutlook],
        *,
        joins: bool = False,
    ) -> None:
        self._refusals, self._recovery, self._look_again = refusals, recovery, look_again
        self._proof = proof
        self._number = next(_numbers)
        self._interruptions = recovery.interruptions
        self._commits = self._walks = 0
        self._most = _MOST
        self._over = self._evaluated = self._due = False
        self._agrees = not joins
        self._seen: dict[str, SeenValue] = {}
        self._held: Held | None = None
        self._weights: frozenset[bytes] = frozenset()
        self._told: set[str] = set()
        self._first: frozenset[str] | None = None
        recovery.steps.evaluations.passed.append(self._on_evaluated)
        recovery.steps.evaluations.end.append(self._on_evaluated)
        recovery.parts.epochs.again.append(self._on_second_pass)

    def enter(self) -> None:
        """Record which values exist before the training function is first called."""
        try:
            parts = self._recovery.parts
            entered, held = Entered(None, parts.taken.function), Held(parts)
            walk = Walk(held.ids, held.storages)
            walk.run(roots_of(entered, parts), _FIRST_S)
            self._first = frozenset(walk.seen) if walk.whole else None
        except Exception:  # noqa: BLE001 - a failed inspection must not end the job
            _log.info("the first steps could not be looked at", exc_info=True)
            self._end()

    @property
    def owe(self) -> bool:
        """True if the next commit must be reported, too."""
        return not self._over and self._commits < _LATEST

    def committed(self) -> None:
        """Run the inspections that are due behind a commit."""
        if self._over:
            return
        self._commits += 1
        if self._recovery.interruptions != self._interruptions:
            self._interruptions, self._agrees = self._recovery.interruptions, False
            if self._seen and self._commits < _LATEST:
                self._due, self._most = True, self._most + 1
        try:
            self._look(sys._getframe(1))
        except Exception:  # noqa: BLE001 - a failed inspection must not end the job
            _log.info("the first steps could not be looked at", exc_info=True)
            self._end()

    def interrupted(self, error: BaseException) -> None:
        """Walk if an early walk is still to come. `error` of a fault has ended the training function."""
        early = bool(self._seen) and self._commits < _LATEST
        if self._over or not early:
            return
        self._most += 1
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        try:
            self._walk(frames[-1], _FIRST_S, Held(self._recovery.parts, self._held))
        except Exception:  # noqa: BLE001 - a failed inspection must not end a recovery
            _log.info("the first steps could not be looked at", exc_info=True)

    # Inside.

    def _end(self) -> None:
        if not self._over:
            self._over, self._seen, self._held = True, {}, None
            self._heed_no_evaluation()
            self._heed_no_pass()

    def _look(self, frame: FrameType) -> None:
        if self._commits == 1 and self._agrees:
            self._refusals.add(*unloadable(self._recovery.parts))
        begins = 1 if self._recovery.step <= _LATEST else 2
        early = self._commits in _EARLY if self._agrees else self._commits == begins
        late = self._commits == _LATEST and not self._evaluated
        if early or late or self._due:
            self._due = False
            self._walk(frame)
        if self._commits <= _LATEST:
            self._weights |= weights_of(self._recovery.parts)
        if self._walks >= self._most:
            self._end()

    def _walk(self, frame: FrameType, limit_s: float = _LIMIT_S, held: Held | None = None) -> None:
        begun_s = time.monotonic()
        parts = self._recovery.parts
        entered, held = Entered(frame), held or Held(parts)
        walk = Walk(held.ids, held.storages)
        walk.run(roots_of(entered, parts), limit_s)
        self._walks += 1
        if self._seen:
            found = Judge(entered, held, self._weights).compare(self._seen, walk.seen, self._first)
            self._tell([one.matter(entered.line) for one in self._take_in(found, entered.line)])
        self._seen, self._held = walk.seen, held
        if self._walks == 2 and self._agrees:
            self._keep_or_refuse(differing(parts, str(self._number)))
        took_ms = 1e3 * (time.monotonic() - begun_s)
        _log.debug("walk %d saw %d values in %.1f ms", self._walks, len(walk.seen), took_ms)

    def _keep_or_refuse(self, names: list[str]) -> None:
        """Have each rank copy parts that differ between ranks; without copies, refuse new processes."""
        matters = [_differing(name, self._recovery.parts) for name in names]
        if matters and self._recovery.replicas.keep_own(self._recovery.backups):
            text = "; ".join(matter.text for matter in matters)
            self._refusals.tell(f"{text}: if a rank is lost, all go back to their own newest copies")
        else:
            self._tell(matters)

    def _take_in(self, found: list[OutsideState], function_line: str) -> list[OutsideState]:
        """Add values that are alike on all ranks to the state. Return the other findings.

        The step that is done twice proves that the training goes on with them. Until then they are refused.
        """
        taken, proof = self._recovery.parts.taken, self._proof()
        found = [one for one in found if not taken.has(one.path)]
        if not self._agrees or self._commits != _EARLY[-1] or allows_inexact() or proof is ProofOutlook.NONE:
            return found
        values = taken.candidates(one.path for one in found if one.is_value)
        paths = alike(values, f"{self._number}/{self._walks}") if values else set()
        if paths:
            self._recovery.take_in(paths)
        chosen = [one for one in found if one.path in paths]
        for one in chosen:
            self._refusals.tell(one.taken_in)
        if proof is ProofOutlook.TO_COME:
            self._refusals.until_proven(*(one.matter(function_line) for one in chosen))
        return [one for one in found if one.path not in paths]

    def _tell(self, found: list[Matter]) -> None:
        new = [matter for matter in found if matter.text not in self._told]
        self._told.update(matter.text for matter in new)
        if allows_inexact():
            self._refusals.warn(*(f"{matter.text}: it is not exact after a fault. {matter.remedy}" for matter in new))
        else:
            self._refusals.add(*new)

    def _on_evaluated(self) -> None:
        if self._commits >= _EARLY[-1]:
            self._heed_no_evaluation()
            self._evaluated = True
            self._arm()

    def _heed_no_evaluation(self) -> None:
        for calls in (self._recovery.steps.evaluations.passed, self._recovery.steps.evaluations.end):
            if self._on_evaluated in calls:
                calls.remove(self._on_evaluated)

    def _on_second_pass(self) -> None:
        if self._commits:
            self._heed_no_pass()
            self._arm()

    def _heed_no_pass(self) -> None:
        if self._on_second_pass in self._recovery.parts.epochs.again:
            self._recovery.parts.epochs.again.remove(self._on_second_pass)

    def _arm(self) -> None:
        if not self._over:
            self._due = True
            try:
                self._weights |= weights_of(self._recovery.parts)
            except RuntimeError as error:
                _log.debug("the weights could not be looked at: %s", error)
            self._look_again()


def _differing(name: str, parts: Parts) -> Matter:
    optimizes = isinstance(parts.replicated.get(name), torch.optim.Optimizer)
    what = f"the optimizer {name!r}" if optimizes else f"{name!r}"
    text = f"{what} of the TrainState made at {parts.made_at} has another state on each rank"
    remedy = "A new process would get a peer's. Let each rank keep the same state."
    return Matter(text, remedy, no_rebuild=optimizes)
