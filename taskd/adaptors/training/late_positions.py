"""What becomes of a step that counts although a part of the position may have moved behind its forward pass.

Rules:

1. In a process that has made the step, such a part is as it is in memory, if the rest of the step cannot move it. A
   loader's iterator has gone with the loop: then the state is torn.
2. A new process has what was put down ahead. If that is too old it is refused, and all processes start anew. Random
   numbers are not: libraries draw from the global generators for purposes of their own.
3. So once a part is seen to move there, it is put down again within each backward pass: no peer can commit a step that
   this process has not given its gradients to.
4. Adapters of trainers put positions down at moments of their own, and are responsible for their parts.
"""

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.late import LateMoves, in_backward, is_ahead, late_moves, mark_of, newest_step
from taskd.adaptors.training.positions.position_file import PositionEntry
from taskd.adaptors.training.script.rest import Rest

_log = logging.getLogger(__name__)
_LOOKS: Final = 3
"""Commits after which it is looked whether anything moves there."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What is put down now.

    Attributes:
        entries: all that is there.
        ahead: puts down where this rank stands, for the next commit.
        pack: has the core put down what is there beside random numbers, too.
        tells: whether this rank is the one that warns.
    """

    entries: Sequence[PositionEntry]
    ahead: Callable[[], None]
    pack: Callable[[], None]
    tells: bool


class LatePositions:
    """Those of one training state.

    Args:
        parts: those of the state.
        recorded: returns what is put down; None where a trainer's adapter does that.
        seeded: whether random numbers come from each step's number.
    """

    def __init__(self, parts: Parts, recorded: Callable[[], Recorded | None], *, seeded: bool) -> None:
        self._parts, self._recorded, self._seeded = parts, recorded, seeded
        self._left = 0
        self._hooked = False
        self._handles: list[Any] = []

    @property
    def owes(self) -> bool:
        """Whether `committed` is to be called at the next commit."""
        return self._left > 0 and self._can_move

    def begin(self) -> None:
        """A training with recoveries begins: who takes over a rank does as that rank did."""
        self._left = _LOOKS
        recorded = self._recorded() if self._can_move else None
        if recorded is not None:
            late = in_backward(recorded.entries) or self._moves(recorded, newest_step(recorded.entries) + 1)
            if late.known and (late.data or late.rng):
                self._record_in_backward(recorded, late)

    def committed(self, step: int) -> None:
        """A step is committed: look whether anything has moved behind its forward pass."""
        if not self.owes:
            return
        self._left -= 1
        recorded = self._recorded()
        if recorded is None:
            return
        late = self._moves(recorded, step + 1)
        if not late.known or not (late.data or late.rng):
            return
        if not self._hooked:
            self._record_in_backward(recorded, late)
        elif late.data and not self._left and recorded.tells:
            backward = in_backward(recorded.entries) is not None
            _log.warning(
                "%s behind the %s pass%s: if a rank dies between that and the commit, all processes start anew; let it "
                "be before %s",
                self._sentence(late),
                "backward" if backward else "forward",
                "" if backward else ", and the parameters of the model do not tell when its backward pass runs",
                "loss.backward()" if backward else "the forward pass",
            )

    def end(self) -> None:
        """The training is over. The next one is looked at anew."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._left, self._hooked = [], 0, False

    def lags(self, step: int, rest: Rest) -> bool:
        """Whether this process, which has made the step and not committed it, cannot know where it stands."""
        late = self._moves(self._recorded(), step)
        return any(not self._is_alone(name, rest) for name in late.data)

    def present(self, step: int) -> dict[str, bytes]:
        """Encode those parts that may stand elsewhere in memory than was put down ahead of this step."""
        names = self._moves(self._recorded(), step).data
        return self._parts.pack_some(names) if names else {}

    def why_stale(self, step: int) -> str:
        """Why what was put down of a step is not where its rank stood at the commit; "" if it is."""
        recorded = self._recorded()
        if recorded is None or not is_ahead(recorded.entries, step):
            return ""
        late = self._moves(recorded, step)
        if not late.data:
            return ""
        known = "" if late.known else "it is not known whether "
        return (
            f"{known}{self._sentence(late)} between the end of the forward pass and the commit, and the process that "
            f"has died had not put down where it stood in step {step}; let it be before the forward pass"
        )

    # Inside.

    @property
    def _can_move(self) -> bool:
        return bool(self._parts.positions) or not self._seeded

    def _moves(self, recorded: Recorded | None, step: int) -> LateMoves:
        if recorded is None or not self._can_move:
            return LateMoves(known=True)
        found = late_moves(recorded.entries, step)
        data = filter(self._is_watched, found.data) if found.known else filter(self._is_scripts, self._parts.positions)
        return LateMoves(found.known, found.rng and not self._seeded, frozenset(data))

    def _record_in_backward(self, recorded: Recorded, late: LateMoves) -> None:
        """Of each model one parameter tells: that of the bucket which DDP sends last, as a rule."""
        self._hooked, mark, ahead = True, mark_of(late), recorded.ahead
        trained = {id(one) for one in self._parts.trained()}

        def in_backward(_gradient: torch.Tensor) -> None:
            self._parts.in_backward = mark
            try:
                ahead()
            finally:
                self._parts.in_backward = None

        for module in self._parts.modules:
            first = next((one for one in module.parameters() if one.requires_grad and id(one) in trained), None)
            if first is not None:
                self._handles.append(first.register_hook(in_backward))  # type: ignore[no-untyped-call]
        self._parts.in_backward = mark
        recorded.pack()
        self._parts.in_backward = None

    def _sentence(self, late: LateMoves) -> str:
        """What moves, without where."""
        names = ", ".join(sorted(late.data))
        return f"in the training of the TrainState made at {self._parts.made_at} {names} of the data changes"

    def _is_alone(self, name: str, rest: Rest) -> bool:
        """Whether the part in memory is as the step leaves it."""
        part = self._parts.positions.get(name)
        loads = part is None or name in self._parts.places or isinstance(part, torch.utils.data.DataLoader)
        return not loads and not rest.may_move(part)

    def _is_watched(self, name: str) -> bool:
        """Whether a part is none of an adapter's."""
        part = self._parts.positions.get(name)
        return part is None or type(part).__module__.partition(".")[0] != "taskd"

    def _is_scripts(self, name: str) -> bool:
        """Whether a part is of a class of the script's: a library's loaders and samplers move as a batch is fetched."""
        part = self._parts.positions[name]
        return name not in self._parts.places and is_users(_file_of(type(part).__module__))


@functools.lru_cache(maxsize=64)
def _file_of(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None) or "<none>")
