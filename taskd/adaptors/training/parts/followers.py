"""Parts that follow the optimizers within a step: schedulers, averages of the weights (EMA), gradient scalers.

Rules:

1. A fault may strike between an optimizer's step and the call by which a part follows it. The step is adopted only
   together with its followers. A part that has moved in every earlier step is advanced, where taskd can do so.
2. The version of one of its tensors shows whether a part has moved, so a commit costs next to nothing. A part without
   tensors is copied (`plain_copy`), and restored where its step is done again.
3. Where taskd cannot advance a part, the state is torn: no step is adopted with an average that is older than its
   weights.
4. A part that moves in some steps only may have been meant to move in this one. The rest of the step decides (see
   `rest`): if that code might move the part, the state is torn. Else the part is right as it is.
5. A part that leads has moved before the optimizers. It can neither be restored nor be moved again: the state is torn,
   unless the part is saved with the buffers. The first step shows whether a part leads. A part that moves behind the
   commit does not, and is right as it is when the next step is done again. A gradient scaler moves also in a step that
   it leaves out: the optimizers have not stepped then, but the step must not be done again with another scale.
6. `rollback` restores parts that move between a commit and the next step's work (at an epoch's end), where that work is
   done again. Schedulers come from copies that are made whenever they have moved, other parts from copies made as a
   loader ends. Buffers are restored before that: they are saved later, as the next step begins.
"""

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.training.fingerprints import Fingerprint
from taskd.adaptors.training.parts.follower import Follower
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.parts.plain_copy import SCHEDULED
from taskd.adaptors.training.parts.taken_in import TakenIn
from taskd.adaptors.training.script.rest import Rest
from taskd.adaptors.training.sharding.own_state import own_state

_log = logging.getLogger(__name__)


class Followers:
    """Followers of one training state.

    Args:
        replicated: parts that are equal on all ranks, by name.
        taken: values that the self-check has added to the parts.
    """

    def __init__(self, replicated: dict[str, Any], taken: TakenIn) -> None:
        optimizers = [part for part in replicated.values() if isinstance(part, torch.optim.Optimizer)]
        trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        self._models = [p for p in replicated.values() if isinstance(p, torch.nn.Module) and _has(p, trained)]
        self._schedulers = [part for part in replicated.values() if isinstance(part, LRScheduler)]
        others = {
            name: part
            for name, part in replicated.items()
            if not isinstance(part, torch.optim.Optimizer | LRScheduler | LibraryPart)
            and not (isinstance(part, torch.nn.Module) and _has(part, trained))
        }
        self._parts = [Follower(name, part) for name, part in others.items()]
        self._library = {name: part for name, part in replicated.items() if isinstance(part, LibraryPart)}
        self._steady = True
        self._strides: list[int] = []
        self._told = False
        self._held: list[tuple[Follower, Any]] = []
        self._saves = False
        self.rest = Rest()
        """Work that the script still had to do in an interrupted step."""
        self._mark_schedulers()
        self._taken = taken
        self._has_parts = bool(self._parts or self._schedulers or self._library)

    @property
    def any(self) -> bool:
        """True if there is anything to mark."""
        return self._has_parts or self._taken.any

    def mark(self) -> None:
        """Mark the present state of all parts: a step is committed."""
        if self._schedulers:
            marks = [scheduler.last_epoch for scheduler in self._schedulers]
            if marks != self._marks:
                strides = [new - old for new, old in zip(marks, self._marks, strict=True)]
                self._steady = self._steady and min(strides) > 0 and strides == (self._strides or strides)
                self._strides = strides  # a scheduler of accelerate's makes as many steps as there are processes
                self._mark_schedulers()
            else:
                self._steady = False
        self._held = []
        for part in self._parts:
            part.mark()
        for library in self._library.values():
            library.committed()
        self._taken.committed()

    def settle(self) -> None:
        """Treat the present state as that of the last committed step, whatever its origin."""
        self._held, self.rest = [], Rest()
        self._mark_schedulers()
        for part in self._parts:
            part.settle()
        for library in self._library.values():
            library.settled()
        self._taken.committed()

    def save(self) -> None:
        """Save schedulers from now on: work behind a commit is done again after a recovery."""
        self._saves = True
        self._mark_schedulers()

    def hold(self) -> None:
        """Copy the parts as a loop over a loader ends: later code may change them, and may have to be done again."""
        if not self._held:
            own = [part for part in self._parts if own_state(part.part) is None]  # a trainer's adapter restores others
            self._held = [(part, copy.deepcopy(part.part.state_dict())) for part in own]

    def rollback(self) -> str:
        """Restore parts that have moved since the commit. Return a text on those that are left as they are; else ""."""
        for library in self._library.values():
            library.put_back()
        self._taken.put_back()
        if not self._held:
            for part in self._parts:
                part.put_back()
        moved = [s for s, mark in zip(self._schedulers, self._marks, strict=True) if s.last_epoch != mark]
        if not self._saves:
            names = ", ".join(type(scheduler).__name__ for scheduler in moved)
            return f"{names} was advanced after the commit, and is left so; loop over state.epochs()" if moved else ""
        for scheduler, (known, groups) in zip(self._schedulers, self._saved, strict=True):
            scheduler.load_state_dict(known)
            for group, values in zip(scheduler.optimizer.param_groups, groups, strict=True):
                _put(group, values)
        for part, held in self._held:
            if part.has_moved or _differs(part.part.state_dict(), held):
                part.part.load_state_dict(held)
                part.settle()
        self._held = []
        return ""

    def _mark_schedulers(self) -> None:
        self._marks = [scheduler.last_epoch for scheduler in self._schedulers]
        if self._saves:
            self._saved = [(scheduler.state_dict(), _values(scheduler.optimizer)) for scheduler in self._schedulers]

    def lag(self, step: int, *, known: bool) -> bool:
        """Return whether a part is older than the weights of this step and cannot be advanced. Log it once.

        `known`: a step was committed here before.
        """
        rest = self.rest
        steady = known and self._steady
        late = [type(s).__name__ for s in self._standing() if rest.may_move(s) and not (steady and _steps_alone(s))]
        late += [part.name for part in self._parts if rest.may_move(part.part) and self._is_late(part)]
        late += [name for name, library in self._library.items() if library.lags()]
        late += self._taken.standing
        if late and not self._told:
            self._told = True
            _log.warning(
                "step %d cannot be kept: the optimizer has stepped, and %s has not followed, or it is not known "
                "whether it does; let it follow right after optimizer.step(), before the next collective: what it "
                "needs of other ranks can be asked for before optimizer.step()",
                step,
                late[0],
            )
        return bool(late)

    def _is_late(self, part: "Follower") -> bool:
        if part.never:
            return self.rest.is_given(part.part)
        return part.may_lag or part.unknown or (part.lags and not self._can_complete(part.part))

    def ahead(self, put_back: Callable[[torch.Tensor], bool]) -> bool:
        """Return whether a part has moved before the step's optimizers: in a repeated step it would move twice."""
        if self._saves and self._held:
            return False
        early = [part for part in self._parts if part.early and not (part.tensor is not None and put_back(part.tensor))]
        always = [part.name for part in early if part.leads and part.moves_often]
        if always and not self._told:
            self._told = True
            _log.warning(
                "%s changes before optimizer.step(): a step that a rank's death interrupts after that cannot be done "
                "again, and all processes start anew; let it follow right after optimizer.step()",
                always[0],
            )
        return bool(early)

    def stepping(self) -> None:
        """Record which parts have moved before the first optimizer of a step, which is about to step."""
        for part in self._parts:
            part.stepping()

    def refresh(self) -> None:
        """Treat the present state as unchanged: it was restored."""
        self.rest = Rest()
        for part in self._parts:
            part.refresh()

    def complete(self) -> None:
        """Advance the parts that lag behind, if the rest of the step would have moved them."""
        standing = self._standing()
        for scheduler, stride in zip(self._schedulers, self._strides, strict=False):
            if scheduler in standing and self.rest.may_move(scheduler):
                for _ in range(stride):
                    scheduler.step()
        for part in self._parts:
            if part.lags and self.rest.may_move(part.part):
                self._complete(part.part)
        for library in self._library.values():
            library.follow()
        self.rest = Rest()

    def _standing(self) -> list[LRScheduler]:
        return [s for s, mark in zip(self._schedulers, self._marks, strict=True) if s.last_epoch == mark]

    def _can_complete(self, part: Any) -> bool:
        return isinstance(part, torch.amp.GradScaler) or (isinstance(part, AveragedModel) and bool(self._source(part)))

    def _complete(self, part: Any) -> None:
        if isinstance(part, AveragedModel):
            part.update_parameters(self._source(part)[0])
        else:
            part.update()

    def _source(self, average: AveragedModel) -> list[torch.nn.Module]:
        """Return the averaged model in a list; an empty one if no model fits, or more than one."""
        shapes = [p.shape for p in average.module.parameters()]
        found = [model for model in self._models if [p.shape for p in model.parameters()] == shapes]
        return found if len(found) == 1 else []


def _steps_alone(scheduler: LRScheduler) -> bool:
    """Return whether its step needs no argument."""
    parameters = inspect.signature(scheduler.step).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _has(module: torch.nn.Module, trained: set[int]) -> bool:
    """Return whether an optimizer trains any of it. A module without parameters counts too: it follows nothing."""
    parameters = list(module.parameters())
    return not parameters or any(id(parameter) in trained for parameter in parameters)


def _differs(now: Any, held: Any) -> bool:
    """Return whether any value of two states differs: a counter may move beside tensors. Unreadable states differ."""
    known = Fingerprint(held).text
    return not known or Fingerprint(now).text != known


def _values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{name: _copied(group[name]) for name in SCHEDULED if name in group} for group in optimizer.param_groups]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _put(group: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value
