"""Self-check of one training function: its text is read, its first steps are inspected, and one is done twice.

A job without the self-check has `NoFirstSteps`, and loads none of the modules that check.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.state import TrainState
from taskd.core.policy import SelfCheck
from taskd.runtime.worker.set_up_files import noted_set_up_files

R = TypeVar("R")


class FirstSteps(Protocol):
    """Interface of the check to a session."""

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function to call in its place. Call this when the process has entered the job's world."""

    def enter(self, *, after_fault: bool) -> None:
        """Prepare for a call of the function, for the first time or after a fault."""

    def committed(self) -> bool:
        """Check a committed step. Return whether the next commit must be reported, too."""

    def interrupted(self, error: BaseException) -> None:
        """Inspect the interrupted step. `error` of a fault has ended the function; the state is unchanged since."""

    def cancel(self) -> None:
        """Stop proving: the job recovers from a fault."""

    def close(self) -> None:
        """End the check: the training is over."""


class NoFirstSteps:
    """Stand-in that checks nothing."""

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function itself."""
        return function

    def enter(self, *, after_fault: bool) -> None:
        """Do nothing."""

    def committed(self) -> bool:
        """Return False: no commit must be reported."""
        return False

    def interrupted(self, error: BaseException) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Do nothing."""

    close = cancel


class WatchedSteps:
    """Checks in every process of a job with the self-check.

    They watch parameters in evaluations, values that are alike on all ranks, a new process's first batches, and values
    outside of the state.
    """

    def __init__(self, runtime: Runtime, recovery: StateRecovery, watch_commit: Callable[[], None]) -> None:
        from taskd.adaptors.training.proof.alike import AlikeRanks
        from taskd.adaptors.training.proof.first_batches import FirstBatches
        from taskd.adaptors.training.proof.looks import EarlyLooks
        from taskd.adaptors.training.proof.parameters import ParameterWatch
        from taskd.adaptors.training.proof.self_check import SelfCheckRun

        self._check = SelfCheckRun(runtime, recovery)
        self._parameters = ParameterWatch(recovery, runtime.rank)
        self._is_new = runtime.link.joins
        self._batches = FirstBatches(recovery, self._check.differs)
        self._looks = EarlyLooks(
            runtime.refusals, recovery, watch_commit, lambda: self._check.outlook, joins=runtime.link.joins
        )
        world = runtime.world
        self._alike = AlikeRanks(
            recovery,
            lambda: f"taskd-alike/{world.store_key}/{world.section}/{world.generation}",
            self._check.differs,
            watch_commit,
        )

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function itself."""
        return function

    def enter(self, *, after_fault: bool) -> None:
        """Prepare each check for a call of the function."""
        self._parameters.enter()
        self._batches.enter(is_new=self._is_new)
        self._is_new = False
        self._alike.enter(after_fault=after_fault)

    def committed(self) -> bool:
        """Run the checks that are due behind this commit."""
        self._looks.committed()
        self._parameters.committed()
        self._batches.committed()
        self._alike.committed()
        return self._looks.owe or self._parameters.owes or self._alike.owes or self._batches.owes

    def interrupted(self, error: BaseException) -> None:
        """Walk over values outside of the state."""
        self._looks.interrupted(error)

    def cancel(self) -> None:
        """Keep watching: the next fault may come in an evaluation."""

    def close(self) -> None:
        """Stop watching."""
        self._parameters.close()
        self._alike.close()
        self._batches.close()


class CheckedFirstSteps(WatchedSteps):
    """Checks of the first steps, in a process that begins with the job."""

    def __init__(self, runtime: Runtime, recovery: StateRecovery, watch_commit: Callable[[], None]) -> None:
        from taskd.adaptors.training.proof.set_up_writes import SetUpWrites

        super().__init__(runtime, recovery, watch_commit)
        files = noted_set_up_files()
        self._writes = None if files is None else SetUpWrites(files, runtime.refusals.tell)

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function that does one step twice. Report files that a new process's set-up would write again."""
        if self._writes is not None:
            self._writes.enter()
        self._looks.enter()
        return self._check.around(function)

    def enter(self, *, after_fault: bool) -> None:
        """Prepare each check, and publish the verdict to new nodes after a fault."""
        super().enter(after_fault=after_fault)
        if after_fault:
            self._check.entered()

    def committed(self) -> bool:
        """Run the checks and the proof that are due behind this commit."""
        self._check.committed()
        return super().committed() or self._check.runs

    def cancel(self) -> None:
        """Stop proving. The other checks end by themselves."""
        self._check.cancel()

    def close(self) -> None:
        """Stop proving and watching."""
        if self._writes is not None:
            self._writes.close()
        self._check.cancel()
        super().close()


def is_checked(runtime: Runtime) -> bool:
    """Return whether this process checks: not a newcomer, whose peers have, and not in a job without the self-check."""
    return runtime.link.config.self_check is not SelfCheck.OFF and not runtime.link.joins


def read_beforehand(
    function: Any, given: tuple[Sequence[Any], Mapping[str, Any]], state: TrainState, runtime: Runtime
) -> None:
    """Read the training function that is called with these arguments."""
    if is_checked(runtime):
        from taskd.adaptors.training.proof.reading import refuse_inexact

        refuse_inexact(function, given, state, runtime.refusals, runtime.link)


def mended(
    call: Callable[[], R],
    function: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    state: TrainState,
    runtime: Runtime,
) -> Callable[[], R]:
    """Return `call`, which calls the training function. In a new process, prepare that function before its first call.

    The place in the data that this process has taken over shows whether counts go on or names are kept. Without such a
    place, the process reads the function to find out.
    """
    if not runtime.link.joins or runtime.link.config.self_check is SelfCheck.OFF:
        return call
    places = state._recovery.parts.places.values()
    known = False

    def mend() -> R:
        nonlocal known
        mends = any(getattr(place, "is_mended", False) for place in places)
        if not known and (mends or state._recovery.stands_at_set_up):
            from taskd.adaptors.training.proof.reading import go_on_as_before

            go_on_as_before(function, given, state, must_mend=mends)
            known = True
        return call()

    return mend


def first_steps_of(runtime: Runtime, recovery: StateRecovery, watch_commit: Callable[[], None]) -> FirstSteps:
    """Return the checks of a session's first steps. `watch_commit` has the next commit reported to them."""
    if runtime.link.config.self_check is SelfCheck.OFF:
        return NoFirstSteps()
    kind = WatchedSteps if runtime.link.joins else CheckedFirstSteps
    return kind(runtime, recovery, watch_commit)
