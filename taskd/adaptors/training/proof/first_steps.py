"""The self-check of one training function: its text is read, its first steps are looked at, and one is done twice.

A job that does not check itself has `NoFirstSteps`, and loads nothing of what checks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.state import TrainState
from taskd.core.policy import SelfCheck

R = TypeVar("R")


class FirstSteps(Protocol):
    """Parts of the check, as a session calls them."""

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function that is called in its place. Called when this process has entered the job's world."""

    def committed(self) -> bool:
        """A step is committed. Return whether the next commit is wanted, too."""

    def cancel(self) -> None:
        """A fault has come, or the training is over."""


class NoFirstSteps:
    """Checks nothing."""

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function itself."""
        return function

    def committed(self) -> bool:
        """Want no commit."""
        return False

    def cancel(self) -> None:
        """Nothing goes on."""


class CheckedFirstSteps:
    """Checks the first steps of a process that begins with the job."""

    def __init__(self, runtime: Runtime, recovery: StateRecovery, watch_commit: Callable[[], None]) -> None:
        from taskd.adaptors.training.proof.looks import EarlyLooks
        from taskd.adaptors.training.proof.self_check import SelfCheckRun

        self._looks = EarlyLooks(runtime.refusals, recovery, watch_commit)
        self._check = SelfCheckRun(runtime, recovery)

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function that does one step twice."""
        return self._check.around(function)

    def committed(self) -> bool:
        """Look, or prove, what is due behind this commit."""
        self._check.committed()
        self._looks.committed()
        return self._check.runs or self._looks.owe

    def cancel(self) -> None:
        """Prove nothing any more. Looks end by themselves."""
        self._check.cancel()


def is_checked(runtime: Runtime) -> bool:
    """Whether this process checks: not a newcomer, whose peers have, nor one of a job that does not want it."""
    return runtime.link.config.self_check is not SelfCheck.OFF and not runtime.link.joins


def read_beforehand(
    function: Any, given: tuple[Sequence[Any], Mapping[str, Any]], state: TrainState, runtime: Runtime
) -> None:
    """Read the training function that is called with these arguments."""
    if is_checked(runtime):
        from taskd.adaptors.training.proof.reading import refuse_inexact

        refuse_inexact(function, given, state, runtime.refusals, runtime.link)


def first_steps_of(runtime: Runtime, recovery: StateRecovery, watch_commit: Callable[[], None]) -> FirstSteps:
    """Return what checks a session's first steps. `watch_commit` has the next commit looked at."""
    return CheckedFirstSteps(runtime, recovery, watch_commit) if is_checked(runtime) else NoFirstSteps()
