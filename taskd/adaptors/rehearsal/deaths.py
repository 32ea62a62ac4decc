"""Kills of a rehearsal: a rank ends by SIGKILL at a planned moment of a planned step, by its own hand.

Rules:

1. A kill is done once, whichever process of the rank comes there first: a file in the rehearsal's folder tells.
2. At a commit all ranks meet, and then one dies while the others are held until they know of the death: what stands
   behind the commit is left undone on every rank. That is where a fault strikes at worst, and not left to chance.
3. A moment that a step does not have (a backward pass whose hooks nobody calls) is made up for at the optimizer's step.
"""

import io
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from taskd.adaptors.training.runtime import current
from taskd.core.rehearsal.kills import Kill, Moment
from taskd.runtime.worker import worker

_AT_COMMIT: Final = (Moment.COMMITTED, Moment.EPOCH_END)
_HOLD_S: Final = 20.0
_LOOK_S: Final = 0.002


class Deaths:
    """Those of this rank.

    Args:
        folder: of the rehearsal.
        rank: of this process.
        ranks: how many there are.
        kills: all that are planned, of every rank.
        tell: is told the kill right before it is done.

    Attributes:
        end_step: last step of the training, if this process was started anew after its end; else None.
    """

    def __init__(self, folder: Path, rank: int, ranks: int, kills: list[Kill], tell: Callable[[Kill], None]) -> None:
        self._folder, self._rank, self._ranks, self._tell = folder, rank, ranks, tell
        behind = next((kill for kill in kills if kill.moment is Moment.BEHIND), None)
        self.end_step = None if behind is None or not self._mark(behind).exists() else behind.step
        self._all = kills if self.end_step is None else []
        self._own = [kill for kill in self._all if kill.rank == rank and not self._mark(kill).exists()]
        self._late: Kill | None = None
        self._over: set[int] = set()
        self.recovered()

    def recovered(self) -> None:
        """Training goes on: nobody is held for a death that has been."""
        self._over |= {kill.number for kill in self._all if self._mark(kill).exists()}

    def at(self, moment: Moment, step: int) -> None:
        """This process has come there."""
        for kill in self._own:
            if kill.moment is moment and kill.step == step:
                self.do(kill)

    def planned(self, moment: Moment, step: int) -> Kill | None:
        """The kill of this rank at that moment, still to be done."""
        return next((kill for kill in self._own if kill.moment is moment and kill.step == step), None)

    def in_backward(self, step: int, parameters: list[torch.nn.Parameter]) -> None:
        """A training pass of this step begins: if this rank is to die in its backward pass, half of that is done."""
        kill = self.planned(Moment.BACKWARD, step)
        if kill is None or self._late is kill:
            return
        self._late = kill
        trained = [one for one in parameters if one.requires_grad]
        seen = [0]

        def count(_parameter: Any) -> None:
            seen[0] += 1
            if 2 * seen[0] >= len(trained):
                self.do(kill)

        for one in trained:
            one.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]

    def before_optimizer(self) -> None:
        """What is late is made up for."""
        if self._late is not None:
            self.do(self._late)

    def in_save(self, step: int, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A checkpoint is about to be written: if this rank is to die at it, it dies with half of it written."""
        kill = self.planned(Moment.SAVING, step)
        if kill is None:
            return
        whole = io.BytesIO()
        target = kwargs.get("f", args[1] if len(args) > 1 else None)
        with suppress(Exception):  # it dies in any case
            save(args[0] if args else kwargs["obj"], whole)
            half = whole.getvalue()[: len(whole.getvalue()) // 2]
            if isinstance(target, str | os.PathLike):
                Path(target).write_bytes(half)
            else:
                target.write(half)  # type: ignore[union-attr]  # a file, or it dies without
        self.do(kill)

    def at_commit(self, step: int) -> None:
        """A step is committed. If a rank dies now: meet the others, and die, or wait until this one is to leave."""
        link, runtime = worker.current(), current()
        for kill in self._all:
            if kill.moment not in _AT_COMMIT or kill.step != step or kill.number in self._over:
                continue
            (self._folder / f"at-{kill.number}-{self._rank}").touch()
            if kill.rank == self._rank:
                _await(partial(self._all_are_there, kill))
                self.do(kill)
            elif link is not None and runtime is not None:
                _await(partial(self._is_known, kill, link))
                self._over.add(kill.number)
                runtime.leave_wait()

    def _all_are_there(self, kill: Kill) -> bool:
        return len([*self._folder.glob(f"at-{kill.number}-*")]) >= self._ranks

    def _is_known(self, kill: Kill, link: worker.WorkerLink) -> bool:
        return self._mark(kill).exists() and link.interrupted

    def do(self, kill: Kill) -> None:
        """Die, unless that was done before."""
        try:
            os.close(os.open(self._mark(kill), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        self._tell(kill)
        os.kill(os.getpid(), signal.SIGKILL)

    def _mark(self, kill: Kill) -> Path:
        return self._folder / f"killed-{kill.number}"


def _await(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _HOLD_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
