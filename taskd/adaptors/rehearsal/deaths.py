"""Kills of a rehearsal: a rank ends by SIGKILL at a planned moment of a planned step, by its own hand.

Rules:

1. A kill is done once, whichever process of the rank comes there first: a file in the rehearsal's folder records it.
2. At a commit all ranks meet. Then one dies, and the others are held until they have learnt of the death. So the code
   behind the commit is left undone on every rank. That is the worst place for a fault, and here it does not depend on
   chance.
3. If a step does not have a planned moment (a backward pass whose hooks nobody calls), the kill is done at the
   optimizer's step instead.
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
    """Kills of this rank.

    Args:
        folder: of the rehearsal.
        rank: of this process.
        ranks: how many there are.
        kills: all that are planned, of every rank.
        tell: receives the kill right before it is done.

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
        """Count the done kills as over: training goes on, and no rank is held for them any more."""
        self._over |= {kill.number for kill in self._all if self._mark(kill).exists()}

    def at(self, moment: Moment, step: int) -> None:
        """Do the kill that is planned for this moment and step, if there is one."""
        for kill in self._own:
            if kill.moment is moment and kill.step == step:
                self.do(kill)

    def planned(self, moment: Moment, step: int) -> Kill | None:
        """Return the kill of this rank at that moment that is not done so far."""
        return next((kill for kill in self._own if kill.moment is moment and kill.step == step), None)

    def in_backward(self, step: int, parameters: list[torch.nn.Parameter]) -> None:
        """Prepare the kill in the backward pass of this step, if planned: the process dies after half of that pass."""
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
        """Do a kill that its backward pass has missed."""
        if self._late is not None:
            self.do(self._late)

    def in_save(self, step: int, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do the kill at a checkpoint, if planned: the process dies with half of the checkpoint written."""
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
        """Do a kill at the commit of a step, if planned: meet the others, then die or wait for the order to leave."""
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
        """Die, unless a process of the rank did so before."""
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
