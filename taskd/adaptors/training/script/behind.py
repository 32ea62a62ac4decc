"""Code in the script's loop behind the commit: a fault may leave it out, and a warning then reports it.

Rules:

1. A survivor detects whether it was interrupted there. If all ranks go back to copies of an earlier step they run that
   code again. Without such copies the lowest of those survivors reports its line. A survivor in its next step, or
   before its commit, was not there: that step is done again from its beginning.
2. If only the lost rank was there, while all others were in their next step, no survivor has observed it. So the first
   line of code behind the commit is reported as possibly left out. It is searched for in the script's text, at a fault,
   from the place of the first commit of each world: a step pays nothing.
3. A step that is counted as the survivors had it, without their commit, has not reached the code behind it. Neither has
   it reached the code before the commit that was still to be done (see `rest`).
4. Code that only prints, counts or reads the time is not reported. Neither is code that `state.epochs` or an adapter
   does again.
"""

import ast
import functools
import linecache
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Final, ParamSpec, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import innermost, is_users
from taskd.adaptors.training.script.afterwards import Afterwards
from taskd.adaptors.training.script.script_text import LOOPS, ScriptLine, blocks_to, function_of, works
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

_STEPS: Final[tuple[CodeType, ...]] = (
    DistributedDataParallel.forward.__code__,
    torch.Tensor.backward.__code__,
    Afterwards.run.__code__,
)
"""Code that is done again: a step's own work, and work that was given to the state."""


_done_again: set[CodeType] = set()


def done_again(function: Callable[P, R]) -> Callable[P, R]:
    """Mark an adapter's function: after a fault it does again the work that follows the commits made in it."""
    _done_again.add(function.__code__)
    return function


class BehindCommit:
    """Code behind the commit of one training loop."""

    def __init__(self) -> None:
        self._line = ""
        self._step = 0
        self._places: tuple[ScriptLine, ...] = ()
        self._has_committed = False
        self._seeks = True
        self._rest = ""
        self._later: tuple[int, Callable[[], None]] | None = None

    def committed(self, step: int | None = None) -> None:
        """Record where the script commits. `commit` calls this function's caller, in some jobs at each step."""
        if step is not None:
            self.tell_due(step)
        if not self._seeks:
            return
        self._seeks, self._has_committed = False, True
        frame = sys._getframe(1)
        places = []
        while frame.f_back is not None and not is_users(frame.f_code.co_filename):
            if frame.f_code in _done_again:
                return
            frame = frame.f_back
        while frame is not None and is_users(file := frame.f_code.co_filename):
            linecache.getlines(file)  # cache the present text: the file may be rewritten later
            places.append(ScriptLine(file, frame.f_lineno, frame.f_code.co_firstlineno))
            frame = frame.f_back  # type: ignore[assignment]  # None at the bottom
        self._places = tuple(places)

    def note(self, error: BaseException, step: int, *, between: bool, rest: str = "") -> None:
        """Record the error by which the training function was left.

        `between`: no work of the next step has ended. `rest`: line of the work that was still to be done before the
        commit, in a step whose optimizers had stepped.
        """
        self._rest = rest
        frames = list(walk_tb(error.__traceback__))
        of_step = any(frame.f_code in _STEPS or frame.f_code in _done_again for frame, _ in frames)
        of_step = of_step or not between or not self._has_committed or begins_a_step(self._places, frames)
        self._line, self._step = "" if of_step else innermost(reversed(frames)), step

    @property
    def left(self) -> int:
        """Step whose work behind the commit this rank has not done; -1 if it has, or there is none."""
        return self._step if self._line and first_behind(self._places) else -1

    def known(self, plan: WorldPlan) -> list[int]:
        """Return three flags of this rank.

        - Training goes on behind that commit, without the code in which this rank was interrupted.
        - This rank has committed.
        - The plan's step is counted without the work that this rank still had to do in it.
        """
        left_out = bool(self._line) and self._step == plan.target_step
        had_to_do = bool(plan.adopt) and bool(self._rest) and self._step + 1 == plan.target_step
        return [left_out, bool(self._places), had_to_do]

    @property
    def owes(self) -> bool:
        """True if something must be logged at a later commit."""
        return self._later is not None

    def tell_later(self, known: Sequence[Sequence[int]], plan: WorldPlan, rank: WorldRank) -> None:
        """Call `tell` at the second commit of the new world, or now if the job ends with the plan.

        `tell` reads the script's text for some 10 ms, and all ranks wait for the first commit.
        """
        self._later = plan.target_step + 2, functools.partial(self.tell, known, plan, rank)
        if plan.dump:
            self.tell_due()

    def tell_due(self, step: int | None = None) -> None:
        """Call `tell` if it is due at the commit of `step`; without a step, because the training function is left."""
        if self._later is not None and (step is None or step >= self._later[0]):
            (_, tell), self._later = self._later, None
            tell()

    def tell(self, known: Sequence[Sequence[int]], plan: WorldPlan, rank: WorldRank) -> None:
        """Log what was left out. `known` are the flags of all ranks of the new world, in which this one has `rank`.

        The first rank with the most certain flag logs it.
        """
        self._seeks = True
        left_out, have_committed, had_to_do = (list(map(bool, one)) for one in zip(*known, strict=True))
        if any(had_to_do):
            if had_to_do.index(True) == rank:
                logger.warning(
                    "%s stands between optimizer.step() and the commit, and is left out of step %d: a rank was lost "
                    "before it. Let it stand before optimizer.step(), or give it to state.after_commit(…)",
                    self._rest,
                    plan.target_step,
                )
        elif any(left_out):
            if left_out.index(True) == rank:
                logger.warning(
                    "%s was interrupted between the commit of step %d and the next step's forward pass. What stands "
                    "behind the commit is not done again, unless it is given to state.after_commit(…)",
                    self._line,
                    self._step,
                )
        elif plan.loads:
            return  # all ranks have gone back, and do it again
        elif any(have_committed) and have_committed.index(True) == rank and (plan.adopt or not all(have_committed)):
            self._tell_what_may_be(plan, [job for job, has in zip(plan.ranks, have_committed, strict=True) if not has])

    def _tell_what_may_be(self, plan: WorldPlan, lost: list[JobRank]) -> None:
        line = first_behind(self._places)
        if not line:
            return
        if plan.adopt:
            why = "that step is counted as the ranks had it that had not committed yet"
        else:
            ranks = f"rank{'s' * (len(lost) != 1)} {', '.join(map(str, lost))}"
            why = f"{ranks} may have been in it, and not in the next step yet"
        logger.warning(
            "%s stands behind the commit, and may be left out after step %d: %s. It is not done again, unless it is "
            "given to state.after_commit(…)",
            line,
            plan.target_step,
            why,
        )


def begins_a_step(places: Sequence[ScriptLine], frames: Sequence[tuple[FrameType, int]]) -> bool:
    """Return whether the script, which commits at `places`, was not behind that in these frames (outermost first)."""
    for number, place in reversed(list(enumerate(places))):
        own = (line for frame, line in frames if _is_in(frame, place))
        line, function = next(own, None), function_of(place)
        if line is None or function is None:
            return False
        if line != place.line:
            statements = _behind(function, place.line, outermost=number == len(places) - 1)
            return not any(one.lineno <= line <= (one.end_lineno or one.lineno) for one in statements)
    return False


def _is_in(frame: FrameType, place: ScriptLine) -> bool:
    code = frame.f_code
    return (code.co_filename, code.co_firstlineno) == (place.file, place.function)


def first_behind(places: Sequence[ScriptLine]) -> str:
    """Return `file:line` of the first work between a commit at `places` and the next step; "" for none.

    `places`: frames of the script, from the one that commits outwards to the one that trains.
    """
    for number, place in enumerate(places):
        function = function_of(place)
        if function is None:
            return ""
        outermost = number == len(places) - 1
        for statement in _behind(function, place.line, outermost=outermost):
            if works(statement):
                return f"{place.file}:{statement.lineno}"
    return ""


def _behind(function: ast.AST, line: int, *, outermost: bool) -> Iterator[ast.stmt]:
    """Yield the statements after `line` until the next round of the function's outermost loop.

    If a loop of another function calls the function (`outermost` is False), yield those up to its end.
    """
    path = list(blocks_to(function, line))
    loops = [number for number, (_, _, parent) in enumerate(path) if isinstance(parent, LOOPS)]
    last = max(loops, default=-1) if outermost else len(path) - 1
    for block, at, parent in path[: last + 1]:
        if _is_epochs(parent, function):
            return
        yield from block[at + 1 :]


def _is_epochs(loop: ast.AST, function: ast.AST) -> bool:
    """Return whether a loop goes over `state.epochs`: directly, within another call or a choice, or by a name."""
    over = getattr(loop, "iter", None)
    if over is None:
        return False
    names = {node.id for node in ast.walk(over) if isinstance(node, ast.Name)}
    return _asks_for_epochs(over) or any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        and _asks_for_epochs(node.value)
        for node in ast.walk(function)
    )


def _asks_for_epochs(node: ast.AST) -> bool:
    found = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr == "epochs" for one in found)
