"""The observer of a rehearsal: it records the activity of a rank's training, and ends the training after some steps.

Rules:

1. It comes by `sitecustomize`, into every Python that the rehearsal starts, with taskd and without. It acts only in a
   rank, once that rank has made a `TrainState` or stepped an optimizer.
2. It watches through the state's own methods and torch's public hooks. It draws no random numbers, and changes nothing
   that it observes. It appends whole lines to one file for each rank, so a killed process's observations are kept.
3. At the last step the rank waits to be ended, until all ranks are there. A script with fewer steps ends by itself.
4. Processes that are started anew after the end of the training record only errors and the lines of their last step.
"""

import json
import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from taskd.adaptors.groups.sites import innermost, is_users, script_line
from taskd.adaptors.rehearsal import output
from taskd.adaptors.rehearsal.deaths import Deaths
from taskd.adaptors.rehearsal.linewatch import LineWatch
from taskd.adaptors.rehearsal.missing import trainers_door, trains_with
from taskd.adaptors.rehearsal.shorter import shorten
from taskd.adaptors.rehearsal.variables import look_up, script_frames, variables
from taskd.adaptors.training.fingerprints import Fingerprint, of_batch, of_part, of_random_numbers
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.recovery import StateRecovery
from taskd.core.rehearsal.kills import Kill, Moment
from taskd.runtime.rehearsal.order import RehearsalOrder

_WAIT_S: Final = 120.0
_LOOK_S: Final = 0.02
_PASSING: Final = ("/dev/", "/proc/", "/sys/")
_MOST_FILES: Final = 20
_ENOUGH: Final = 3
"""Optimizer steps after which a script counts as one without a state."""


class TrainingObserver:
    """The observer of one process of a rank."""

    def __init__(self, folder: Path, order: RehearsalOrder, rank: int, ranks: int) -> None:
        self.pid = os.getpid()
        self._folder, self._order, self._rank = folder, order, rank
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(folder / f"rank-{rank}", flags, 0o600)
        self._deaths = Deaths(folder, rank, ranks, list(order.kills), self._tell_kill)
        self._parts: Parts | None = None
        self._own: frozenset[int] = frozenset()
        self._recovery: StateRecovery | None = None
        self._passes = self._optimizer_steps = 0
        self._behind = self._works = False
        self._evaluated = -1
        self._epoch: tuple[int, ...] | None = None
        # Computed once: to find it opens files, and a process that computes it while one is opened waits for itself.
        self._passing = (*_PASSING, f"{tempfile.gettempdir()}/", f"{folder.parent}/")
        self._opened: set[str] = set()
        self._begun_s = time.monotonic()
        self._watch: LineWatch | None = None
        logging.getLogger("taskd").addHandler(_Hearing(self))
        if self._deaths.end_step is not None:
            self.note("anew")

    def note(self, kind: str, **fields: Any) -> None:
        """Write a line to the rank's file."""
        end = self._deaths.end_step
        if end is not None and kind not in ("anew", "died") and not (kind == "printed" and self._step >= end):
            return
        os.write(self._file, json.dumps({"k": kind, "step": self._step, **fields}).encode() + b"\n")

    @property
    def _step(self) -> int:
        """Number of committed steps."""
        return 0 if self._recovery is None else self._recovery.step

    # ---- Events of the state

    def made(self, parts: Parts) -> None:
        """Record that a TrainState was made, and shorten its loaders."""
        self.note("made", line=script_line())
        for text in shorten(parts):
            self.note("shortened", text=text)

    def enters(self, recovery: StateRecovery, *, begins: bool) -> None:
        """Record that the training starts here, or waits to join."""
        if self._recovery is None:
            self._recovery, self._parts = recovery, (parts := recovery.parts)
            self._own = _own(parts)
            self._hook(parts)
            recovery.steps.evaluations.begin.append(self._work_begins)
            recovery.steps.evaluations.end.append(self._work_ends)
            output.listen(self._heard)
        if begins:
            self.note("begin", inside=_is_resilient(sys._getframe(2)))

    def goes_on(self, *, new: bool) -> None:
        """Record that a recovery is over."""
        self._passes = 0
        self._deaths.recovered()
        self.note("on", new=new)

    def committed(self, step: int, loss: Any, *, whole: bool) -> None:
        """Record a committed step, by the script or for it; `whole` with the work that follows it."""
        frame: FrameType | None = sys._getframe(2)
        self._passes, self._behind = 0, True
        by_script = next(script_frames(frame), None) is not None and not _is_adopting(frame)
        seen = variables(frame, self._own) if by_script and whole else []
        self.note(
            "commit",
            parts=self._parts_now() if whole else {},
            loss="" if loss is None else repr(float(loss)),
            variables=[(one.name, one.text, one.moves, one.local) for one in seen],
        )
        if not by_script:
            return
        self._deaths.at_commit(step)
        self._look_for_end(step)
        if self._order.watched and self._watch is None:
            self._watch = LineWatch(list(self._order.watched), self._look, self._changed)
            self._watch.start(frame)

    def returned(self) -> None:
        """Do the kill planned for here, if any: the training function has returned on all ranks."""
        self._deaths.at(Moment.BEHIND, self._step)

    # ---- Events of torch

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer's step, or do the kill that is planned behind it."""
        if self._parts is not None:
            if any(optimizer is one for one in self._parts.optimizers):
                self._deaths.at(Moment.STEPPED, self._step + 1)
            return
        self._optimizer_steps += 1
        if self._optimizer_steps == _ENOUGH:
            frame = next(script_frames(sys._getframe(1)), None)
            self.note("missing", door=trainers_door(), **({} if frame is None else trains_with(frame)))
            self._wait()

    def steps(self) -> None:
        """Do a kill that was missed: an optimizer is about to step."""
        self._deaths.before_optimizer()

    def saves(self, save: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a checkpoint is about to be written, and do the kill that is planned there."""
        if self._parts is not None and is_users_call(sys._getframe(2)):
            self.note("save")
            self._deaths.in_save(self._step, save, args, kwargs)

    def opens(self, path: str) -> None:
        """Record that a file is opened for writing."""
        if (
            not path.startswith(self._passing)
            and path not in self._opened
            and len(self._opened) < _MOST_FILES
            and os.getpid() == self.pid
        ):
            self._opened.add(path)
            self.note("wrote", path=path)

    def died(self, error: BaseException, trace: Any) -> None:
        """Record an exception that has left the script."""
        frames = list(traceback.walk_tb(trace))
        line = innermost(reversed(frames)) if frames else ""
        text = f"{type(error).__name__}: {error}"
        self.note("died", text=text[:2000], line=line, taskd=str(type(error).__module__ == "taskd.errors"))

    # ---- Internals

    def _hook(self, parts: Parts) -> None:
        for module in parts.modules:
            module.register_forward_pre_hook(_before_forward, with_kwargs=True)

    def before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a model of the state is about to be used, and do the kills that are planned there."""
        parts = self._parts
        if parts is None or not any(module is one for one in parts.modules) or torch.compiler.is_compiling():
            return
        step = self._step + 1
        if not (module.training and torch.is_grad_enabled()):
            if self._evaluated != self._step:
                self._evaluated = self._step
                self.note("evaluation")
            self._deaths.at(Moment.EVALUATION, self._step)
            return
        self._behind = False
        self._passes += 1
        first = self._passes == 1
        if first and self._epoch != (epoch := _epoch_of(parts)):
            if self._epoch is not None:
                self.note("end")
            self._epoch = epoch
        self._deaths.at(Moment.FORWARD if first else Moment.ACCUMULATING, step)
        numbers, now = (of_random_numbers(), self._parts_now()) if first else ({}, {})
        batch = of_batch(args, kwargs)
        self.note("forward", step=step, batch=batch, numbers=numbers, parts=now)
        self._deaths.in_backward(step, parts.parameters())

    def _work_begins(self) -> None:
        self._works = True

    def _work_ends(self) -> None:
        """Record that work of `after_commit` is done, or an evaluation elsewhere is over."""
        if self._works:
            self._works = False
            self.note("work")
            self._deaths.at(Moment.AFTER_COMMIT, self._step)

    def _parts_now(self) -> dict[str, str]:
        assert self._parts is not None
        return {name: of_part(part) for name, part in self._parts.replicated.items()}

    def _look(self, frame: FrameType, name: str) -> str:
        kind, _, own = name.partition(":")
        if kind == "part":
            part = None if self._parts is None else self._parts.replicated.get(own)
            return "" if part is None or not self._behind else of_part(part)
        return Fingerprint(look_up(frame, own), self._own).text

    def _changed(self, name: str, line: str) -> None:
        self.note("line", name=name, line=line, behind=self._behind)

    def _heard(self, text: str, line: str) -> None:
        self.note("printed", text=text[:400], line=line)

    def _tell_kill(self, kill: Kill) -> None:
        self.note("killed", number=kill.number)

    def _look_for_end(self, step: int) -> None:
        late = self._folder / "late"
        is_late = step >= self._order.least and time.monotonic() - self._begun_s > self._order.after_s
        if self._rank == 0 and is_late and not late.exists():
            late.write_text(str(step + 1))
        last = self._order.last
        if late.exists():
            last = min(last, int(late.read_text() or step + 1))
        if step >= last:
            self._wait()

    def _wait(self) -> None:
        """Wait until the rehearsal ends this process, which it does once all ranks are as far as this one."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        (self._folder / f"done-{self._rank}").touch()
        end_s = time.monotonic() + _WAIT_S
        while time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        os._exit(0)


class _Hearing(logging.Handler):
    """A handler that records taskd's own warnings; they are written as ever."""

    def __init__(self, observer: TrainingObserver) -> None:
        super().__init__(logging.WARNING)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        """Record a warning."""
        if os.getpid() == self._observer.pid:
            self._observer.note("told", text=record.getMessage()[:2000])
        if not logging.getLogger().handlers and logging.lastResort is not None:
            logging.lastResort.handle(record)


_before: Final[list[TrainingObserver]] = []


def _before_forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call the observer's hook. This is a plain function, so a model that carries it can be copied."""
    for observer in _before:
        if observer.pid == os.getpid():
            observer.before_forward(module, args, kwargs)


def watching(observer: TrainingObserver) -> None:
    """Call the hooks of this observer from now on, in place of another's."""
    _before[:] = [observer]


def is_users_call(frame: FrameType | None) -> bool:
    """Return whether the script itself is the caller here, and not a library on its own account."""
    return frame is not None and is_users(frame.f_code.co_filename)


def _is_resilient(frame: FrameType | None) -> bool:
    """Return whether a resilient function is being entered."""
    while frame is not None:
        if frame.f_code.co_name == "run" and frame.f_code.co_filename.endswith("training/session.py"):
            return True
        frame = frame.f_back
    return False


def _is_adopting(frame: FrameType | None) -> bool:
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_name == "adopt":
            return True
        frame = frame.f_back
    return False


def _epoch_of(parts: Parts) -> tuple[int, ...]:
    """Return the epoch, and the number of each loader's pass over its data."""
    return parts.epochs.now, *(getattr(place, "passes", 0) for place in parts.places.values())


def _own(parts: Parts) -> frozenset[int]:
    """Return the ids of the state's contents: its parts, which are compared as such, and the objects in them."""
    inner = [module for root in parts.modules for module in root.modules()]
    deeper = [
        value
        for part in (*parts.all.values(), *parts.replicated.values())
        if not isinstance(part, torch.nn.Module | torch.optim.Optimizer)
        for value in getattr(part, "__dict__", {}).values()
        if isinstance(value, dict | list | torch.Tensor | torch.nn.Module | torch.Generator | torch.optim.Optimizer)
    ]
    own = [*parts.all.values(), *parts.replicated.values(), *inner, *deeper, *parts.wrappers(), *parts.parameters()]
    return frozenset(map(id, own))
