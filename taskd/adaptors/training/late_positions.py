"""Positions that change between the end of a forward pass and the commit: detection, a second recording, refusal.

A rank's position (random numbers, place in the data) is recorded as its forward pass ends. If its peers commit that
step and the rank dies first, its replacement continues from this record.

Rules:

1. A survivor keeps such a part as it is in memory, unless the rest of the step may change it. If that is a loader, the
   state is torn: its iterator is gone.
2. A replacement uses the record. If the record is too old, it is refused, and all processes start anew. Random numbers
   never refuse a recovery: libraries draw from the global generators for their own purposes.
3. Once a change is detected, the position is recorded in each backward pass too. No peer can commit a step before this
   process has contributed its gradients.
4. Adapters of trainers record positions themselves. Their parts are not checked.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from taskd.adaptors.groups.sites import is_users_class
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.late import LateMoves, in_backward, is_ahead, late_moves, mark_of, newest_step
from taskd.adaptors.training.positions.position_file import PositionEntry
from taskd.adaptors.training.script.rest import Rest

_log = logging.getLogger(__name__)
_LOOKS: Final = 3
"""Number of commits at the start of a training that are checked for late changes."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The recorded positions of this rank.

    Attributes:
        entries: all of them.
        ahead: records the present position for the next commit.
        pack: makes the core record the data beside random numbers.
        warns: whether this rank logs warnings for the job.
    """

    entries: Sequence[PositionEntry]
    ahead: Callable[[], None]
    pack: Callable[[], None]
    warns: bool


class LatePositions:
    """Late changes in the positions of one training state.

    Args:
        parts: parts of the state.
        recorded: returns the recorded positions; None where a trainer's adapter records them.
        seeded: whether random numbers come from each step's number.
    """

    def __init__(self, parts: Parts, recorded: Callable[[], Recorded | None], *, seeded: bool) -> None:
        self._parts, self._recorded, self._seeded = parts, recorded, seeded
        self._left = 0
        self._hooked = False
        self._handles: list[Any] = []

    @property
    def owes(self) -> bool:
        """True if `committed` must be called at the next commit."""
        return self._left > 0 and self._can_move

    def begin(self) -> None:
        """Start with a training. A replacement records in backward passes if its predecessor did so."""
        self._left = _LOOKS
        recorded = self._recorded() if self._can_move else None
        if recorded is not None:
            late = in_backward(recorded.entries) or self._moves(recorded, newest_step(recorded.entries) + 1)
            if late.known and (late.data or late.rng):
                self._record_in_backward(recorded, late)

    def committed(self, step: int) -> None:
        """Check the committed step for changes after its forward pass."""
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
        elif late.data and not self._left and recorded.warns:
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
        """End with the training: remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._left, self._hooked = [], 0, False

    def lags(self, step: int, rest: Rest) -> bool:
        """Return whether the position of a step that was made but not committed is unknown in this process."""
        late = self._moves(self._recorded(), step)
        return any(not self._is_alone(name, rest) for name in late.data)

    def present(self, step: int) -> dict[str, bytes]:
        """Encode the parts whose record for this step may be older than their memory."""
        names = self._moves(self._recorded(), step).data
        return self._parts.pack_some(names) if names else {}

    def why_stale(self, step: int) -> str:
        """Return why the record of a step is too old to continue from; "" if it is not."""
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
        """Add a hook to one parameter of each model, usually of the bucket that DDP sends last."""
        self._hooked, mark, ahead = True, mark_of(late), recorded.ahead
        trained = {id(one) for one in self._parts.trained()}

        def in_backward(_gradient: torch.Tensor) -> None:
            with self._parts.marked(mark):
                ahead()

        for module in self._parts.modules:
            first = next((one for one in module.parameters() if one.requires_grad and id(one) in trained), None)
            if first is not None:
                self._handles.append(first.register_hook(in_backward))  # type: ignore[no-untyped-call]
        with self._parts.marked(mark):
            recorded.pack()

    def _sentence(self, late: LateMoves) -> str:
        """Return the beginning of a message: which parts change."""
        names = ", ".join(sorted(late.data))
        return f"in the training of the TrainState made at {self._parts.made_at} {names} of the data changes"

    def _is_alone(self, name: str, rest: Rest) -> bool:
        """Return whether the part in memory has its value at the step's end."""
        part = self._parts.positions.get(name)
        loads = part is None or name in self._parts.places or isinstance(part, torch.utils.data.DataLoader)
        return not loads and not rest.may_move(part)

    def _is_watched(self, name: str) -> bool:
        """Return whether a part does not belong to a trainer's adapter."""
        part = self._parts.positions.get(name)
        return part is None or type(part).__module__.partition(".")[0] != "taskd"

    def _is_scripts(self, name: str) -> bool:
        """Return whether the script defines the part's class. Parts of libraries change when a batch is fetched."""
        part = self._parts.positions[name]
        return name not in self._parts.places and is_users_class(type(part))
