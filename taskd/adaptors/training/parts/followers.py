"""Parts that follow the optimizers within a step: schedulers, averages of the weights (EMA), gradient scalers.

Rules:

1. A fault may strike between an optimizer's step and the call by which a part follows it. The step is adopted only
   with what follows: a part that has moved in every step before is made to follow, where taskd knows how.
2. Whether a part has moved is seen from the version of one of its tensors, so a commit costs next to nothing. One
   without tensors is copied (`plain_copy`), and put back where its step is done again.
3. Where it is not known how, the state is torn: no step is adopted with an average that is older than its weights.
4. A part that moves in some steps only may have been meant to move in this one. What was left of the step tells (see
   `rest`): if it might have been moved there, the state is torn, and else it is right as it is.
5. A part that leads, and has moved before the optimizers, can neither be put back nor be moved again: the state is
   torn, unless it is saved with the buffers. Whether it leads is seen in the first step; one that moves behind the
   commit does not, and is right as it is when the next step is done again. A gradient scaler moves also in a step that
   it leaves out: the optimizers have not stepped then, and yet the step must not be done again with another scale.
6. What moves between a commit and the next step's work (at an epoch's end) is put back by `rollback`, where that work
   is done again: schedulers from copies made whenever they have moved, other parts from copies made as a loader ends.
   Buffers are put back before that: they are saved later, as the next step begins.
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
    """Those of one training state.

    Args:
        replicated: the parts that are equal on all ranks, by name.
        taken: what the self-check has taken in beside them.
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
        """What the script had still to do of a step that was interrupted."""
        self._mark_schedulers()
        self._taken = taken
        self._has_parts = bool(self._parts or self._schedulers or self._library)

    @property
    def any(self) -> bool:
        """Whether there is anything to mark."""
        return self._has_parts or self._taken.any

    def mark(self) -> None:
        """A step is committed."""
        if self._schedulers:
            marks = [scheduler.last_epoch for scheduler in self._schedulers]
            if marks != self._marks:
                strides = [new - old for new, old in zip(marks, self._marks, strict=True)]
                self._steady = self._steady and min(strides) > 0 and strides == (self._strides or strides)
                self._strides = strides  # accelerate's make as many steps as there are processes
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
        """What is there now is that of the last committed step, however it came to be."""
        self._held, self.rest = [], Rest()
        self._mark_schedulers()
        for part in self._parts:
            part.settle()
        for library in self._library.values():
            library.settled()
        self._taken.committed()

    def save(self) -> None:
        """From now on what has moved since a commit is done again."""
        self._saves = True
        self._mark_schedulers()

    def hold(self) -> None:
        """A loop over a loader has ended: what follows it may change parts, and may have to be done again."""
        if not self._held:
            own = [part for part in self._parts if own_state(part.part) is None]  # others a trainer's adapter puts back
            self._held = [(part, copy.deepcopy(part.part.state_dict())) for part in own]

    def rollback(self) -> str:
        """Bring back what has moved since the commit, if that is done again; else return what was left as it is."""
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
        """Whether a part is older than the weights of this step, and cannot be brought on. Said once.

        `known` tells whether a step was committed here before.
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
        """Whether a part has moved before the step's optimizers, and would move twice if that is done again."""
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
        """The first optimizer of a step is about to step."""
        for part in self._parts:
            part.stepping()

    def refresh(self) -> None:
        """What is there now has not moved: it was put back."""
        self.rest = Rest()
        for part in self._parts:
            part.refresh()

    def complete(self) -> None:
        """Make follow what lags behind, and would have followed in what was left of the step."""
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
        """The model that is averaged, if there is just one that it can be."""
        shapes = [p.shape for p in average.module.parameters()]
        found = [model for model in self._models if [p.shape for p in model.parameters()] == shapes]
        return found if len(found) == 1 else []


def _steps_alone(scheduler: LRScheduler) -> bool:
    """Its step needs no argument."""
    parameters = inspect.signature(scheduler.step).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _has(module: torch.nn.Module, trained: set[int]) -> bool:
    """Whether an optimizer trains any of it; what has no parameters follows nobody."""
    parameters = list(module.parameters())
    return not parameters or any(id(parameter) in trained for parameter in parameters)


def _differs(now: Any, held: Any) -> bool:
    """Compare all of two states: a counter may have moved beside tensors that stay. What cannot be read differs."""
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
