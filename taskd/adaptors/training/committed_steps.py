"""A rank's committed steps: their count, and the rank's random numbers and data position at each of them.

Rules:

1. The C core alone counts a step if its commit has nothing else to do (`commit_step`). Code that needs more from a
   commit must demand it of the board; otherwise the commit does not call it.
2. Positions are written to a file that outlives this process, if there is one. A forked child does not write to it.
3. With a seed, a step's random numbers are derived from its number, and none are recorded.
"""

import weakref
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from taskd.adaptors.training.keeping import Copying
from taskd.adaptors.training.late_positions import LatePositions, Recorded
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.late import batches_ahead
from taskd.adaptors.training.positions.payload import unpack
from taskd.adaptors.training.positions.position_file import PositionKind
from taskd.adaptors.training.positions.positions import PositionMemory, Positions
from taskd.adaptors.training.positions.rng import RngCapture, is_just_seeded, mark_of
from taskd.adaptors.training.positions.seeds import Seeds
from taskd.runtime.worker.pulse import Board, Extra, Pulse
from taskd.wire.kinds import JobRank


def leaver(recovery: "CommittedSteps") -> Callable[[], None]:
    """Return a callback for forked children. It detaches the child from the position file, which is its parent's."""
    known = weakref.ref(recovery)

    def leave() -> None:
        left = known()
        if left is not None:
            left._positions, left._count, left.shows_steps = PositionMemory(), left._count_slowly, False

    return leave


def step_counter(recovery: "CommittedSteps") -> Callable[[], int]:
    """Return a function that gives the number of the step under way, from 1. It holds during the step's commit too."""
    known = weakref.ref(recovery)

    def due_step() -> int:
        found = known()
        return 0 if found is None else found.step + (not found.committing)

    return due_step


class CommittedSteps:
    """The step count and the recorded positions of one training state.

    Args:
        parts: parts of the state.
        seeds: seeds of its random numbers, if it was given a seed.
        commit: the whole commit of a step, with all its extra work.

    Attributes:
        commit_step: the function that commits: `commit`, or a function of the C core that calls `commit` only if there
            is extra work.
        by_trainer: whether a trainer's loop commits. Such a loop calls `record_ahead`. It has nothing to do between
            the optimizers' step and the commit, so no script text is read.
        late: data and random numbers that change between a forward pass and its commit.
        shows_steps: whether a commit also records the step in the black box.
    """

    committing = False
    """True while a step is being counted."""
    commits_quickly = True
    """True if the C core may commit without a call of `commit`. A rehearsal, which observes each commit, forbids it."""

    def __init__(
        self, parts: Parts, seeds: Seeds | None, commit: Callable[[float | torch.Tensor | None], None]
    ) -> None:
        self.parts = parts
        self.commit_step = commit
        self.shows_steps = False
        self._board = Board(len(parts.optimizers))
        self._backups: Copying | None = None
        self._on_commit: Callable[[int], None] | None = None
        self._verify: Callable[[], None] | None = None
        self._positions: Positions = PositionMemory()
        self._seeds, self._rng = seeds, seeds or RngCapture()
        self._rank: JobRank | None = None
        self._start: dict[int, bytes] = {}
        self._pulse: Pulse | None = None
        self._count: Callable[[int], None] = self._count_slowly
        self._ahead: Callable[[], None] = self._look_ahead
        self.by_trainer = False
        self.late = LatePositions(parts, self._recorded, seeded=seeds is not None)

    @property
    def step(self) -> int:
        """Committed steps."""
        return self._board.step

    @step.setter
    def step(self, step: int) -> None:
        self._board.step = step

    @property
    def commits(self) -> int:
        """Number of commits since this process started or last received a state."""
        return self._board.commits

    @property
    def on_commit(self) -> Callable[[int], None] | None:
        """Callback at the end of a commit; it gets the step. Any thread may set it."""
        return self._on_commit

    @on_commit.setter
    def on_commit(self, call: Callable[[int], None] | None) -> None:
        if call is None:
            self._board.demand(Extra.ON_COMMIT, wanted=False)
        self._on_commit = call
        if call is not None:
            self._board.demand(Extra.ON_COMMIT)

    @property
    def verify(self) -> Callable[[], None] | None:
        """Function that waits for the results of a step's collectives before the step is counted; None: no wait."""
        return self._verify

    @verify.setter
    def verify(self, wait: Callable[[], None] | None) -> None:
        self._verify = wait
        self._board.demand(Extra.STATE)

    @property
    def backups(self) -> Copying | None:
        """Object that copies the state while the training function runs; None if no copies are made."""
        return self._backups

    @backups.setter
    def backups(self, copying: Copying | None) -> None:
        self._backups = copying
        self._board.demand(Extra.STATE)

    def copy_at(self, step: int) -> None:
        """Have the commit of `step` call `backups.due`; NEVER: no commit does. Thread-safe."""
        self._board.due = step

    def take_in(self, paths: Iterable[str]) -> None:
        """Add values from outside of the state to it, by their paths. Call it after a commit."""
        self.parts.taken.take(paths)
        self._board.demand(Extra.STATE)

    def position(self, step: int) -> bytes:
        """Return the recorded position of `step`, which a donor may lend to a rank without one; empty if there is none.

        A newcomer always has a position for the step at which its set-up ended. Its predecessor may have died before it
        recorded anything, but its set-up ended at the same place.
        """
        return self._positions.read().get(step) or self._start.get(step, b"")

    def record_again(self) -> None:
        """Record the position of the present step again, because the place in the data has become known."""
        self._record()

    def record_commit(self) -> None:
        """Record the position of the present step again after its commit, because its progress is known now."""
        self.committing = True
        try:
            self._record()
        finally:
            self.committing = False

    def enter_again(self) -> None:
        """Record the random states with which the training function is entered again after a recovery.

        A script that seeds at the beginning of each epoch does so again, but its loader resumes within the epoch. The
        recorded states are restored there if torch's generator has drawn nothing since it was seeded.
        """
        generators, step = RngCapture(), self.step
        begins = [bytes(one) for one in generators.capture()]

        def goes_on() -> None:
            self.parts.epochs.goes_on = None
            if self.step == step and is_just_seeded() and generators.mark() != mark_of(begins):
                generators.restore(begins)

        self.parts.epochs.goes_on = goes_on

    @property
    def stands_at_set_up(self) -> bool:
        """True if this process has its place from its own set-up and no record of a predecessor exists."""
        return self.step in self._start and self.step not in self._positions.read()

    def batches_ahead(self) -> dict[str, bytes]:
        """Return the predecessor's batch samples of the next step, by the name of the loader."""
        return batches_ahead(self._positions.entries(), self.step + 1)

    # Inside.

    def _go_back(self, payload: bytes) -> list[str]:
        """Restore a position. Return the names of the parts that the position did not contain."""
        if not payload:
            self.parts.epochs.unpack(None)
            return []
        rng, data = unpack(payload)
        missing = self.parts.unpack_positions(data)
        self._rng.restore(rng)
        return missing

    def _own_rank(self) -> JobRank:
        if self._rank is None:
            self._rank = JobRank(dist.get_rank() if dist.is_available() and dist.is_initialized() else 0)
        return self._rank

    def _count_slowly(self, _step: int) -> None:
        self._board.reset()
        self._record()

    def _record(self) -> None:
        rng = self._rng.capture()
        self._positions.write(PositionKind.COMMITTED, self.step, rng, self.parts.data_position(rng))

    def _recorded(self) -> Recorded | None:
        if self.by_trainer:
            return None
        return Recorded(self._positions.entries(), self.record_ahead, self._pack_in_pulse, warns=self._rank == 0)

    def record_ahead(self) -> None:
        """Record this rank's expected position at the next commit, as far as it is known."""
        self._ahead()

    def _look_ahead(self) -> None:
        rng = self._rng.capture()
        self._positions.write(PositionKind.TENTATIVE, self.step + 1, rng, self.parts.data_position(rng))

    def _pack_in_pulse(self) -> None:
        if self._pulse is not None and self.parts.has_place:
            parts, rng = self.parts, tuple(self._rng.capture())
            self._pulse.pack_with(lambda: parts.data_position(rng))
