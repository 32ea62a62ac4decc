"""The observer's way into a process: a rehearsal's `sitecustomize` calls it, before the script runs.

Rules:

1. Nothing of torch is imported here: each watched module is hooked when the script has imported it.
2. In a warm process of taskd this runs before its rank is known. So each hook requests the observer when it is called.
3. Hooks are set on taskd, or by torch's public interface for observers; `torch.save` alone is wrapped.
"""

import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from taskd.adaptors.torchrun.imports import after_import
from taskd.adaptors.torchrun.start import import_the_machines_own
from taskd.config.process import environment, forget_start

if TYPE_CHECKING:
    from taskd.adaptors.rehearsal.observer import TrainingObserver

_WRITES: Final = os.O_WRONLY | os.O_RDWR
_folder = Path()
_observer: "TrainingObserver | None" = None


def begin(folder: str) -> None:
    """Set the hooks. Called while the interpreter starts."""
    global _folder  # noqa: PLW0603 - one per process
    _folder = Path(folder)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    import_the_machines_own()
    after_import("taskd.adaptors.training.recovery", _watch_states)
    after_import("taskd.adaptors.training.session", _watch_ends)
    after_import("taskd.adaptors.training.proof.self_check", _do_no_step_twice)
    after_import("torch.optim", _watch_optimizers)
    after_import("torch.serialization", _watch_saves)
    sys.addaudithook(_hear)


def observer() -> "TrainingObserver | None":
    """Return the observer of this process, None if it is no rank."""
    global _observer  # noqa: PLW0603 - one per process
    env = environment()
    if _observer is not None and _observer.pid == os.getpid():
        return _observer
    if _observer is not None or "RANK" not in env or "LOCAL_RANK" not in env:
        return None  # a process that a rank has forked, or torchrun's own
    from taskd.adaptors.rehearsal.observer import TrainingObserver, watching
    from taskd.runtime.rehearsal.order import RehearsalOrder

    forget_start(str(_folder))
    _observer = TrainingObserver(_folder, RehearsalOrder.read(_folder), int(env["RANK"]), int(env["WORLD_SIZE"]))
    watching(_observer)
    return _observer


def _watch_states(module: ModuleType) -> None:
    kind: Any = vars(module)["StateRecovery"]
    own_init, own_begin, own_empty = kind.__init__, kind.begin, kind.declare_empty
    own_commit, own_again = kind.commit, kind.do_again

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        own_init(self, *args, **kwargs)
        if known := observer():
            known.made(self.parts)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        own_begin(self, *args, **kwargs)
        if known := observer():
            known.enters(self, begins=True)

    def declare_empty(self: Any) -> None:
        own_empty(self)
        self._rehearsed_new = True
        if known := observer():
            known.enters(self, begins=False)

    def commit(self: Any, loss: Any = None) -> None:
        known, whole = observer(), False
        try:
            own_commit(self, loss)
            whole = True
        finally:
            if known and not self.committing:
                known.committed(self.step, loss, whole=whole)

    def do_again(self: Any) -> None:
        if known := observer():
            known.goes_on(new=self.__dict__.pop("_rehearsed_new", False))
        own_again(self)

    kind.__init__, kind.begin, kind.declare_empty = __init__, begin, declare_empty
    kind.commit, kind.do_again, kind.commits_quickly = commit, do_again, False


def _watch_ends(module: ModuleType) -> None:
    kind: Any = vars(module)["Session"]
    own = kind.run

    def run(self: Any, training: Any) -> Any:
        result = own(self, training)
        if known := observer():
            known.returned()
        return result

    kind.run = run


def _do_no_step_twice(module: ModuleType) -> None:
    """Switch the repeated step of the self-check off: a rehearsal compares its runs step by step, and kills instead."""
    vars(module)["SelfCheckRun"]._begin = lambda _self: None


def _watch_optimizers(module: ModuleType) -> None:
    def before(*_: Any) -> None:
        if known := observer():
            known.steps()

    def after(optimizer: Any, *_: Any) -> None:
        if known := observer():
            known.stepped(optimizer)

    hooks = sys.modules["torch.optim.optimizer"]
    hooks.register_optimizer_step_pre_hook(before)
    hooks.register_optimizer_step_post_hook(after)
    del module


def _watch_saves(module: ModuleType) -> None:
    own = vars(module)["save"]

    def save(*args: Any, **kwargs: Any) -> Any:
        if _observer is not None and _observer.pid == os.getpid():
            _observer.saves(own, args, kwargs)
        return own(*args, **kwargs)

    save.__doc__, save.__wrapped__ = own.__doc__, own  # type: ignore[attr-defined]
    vars(module)["save"] = save


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """Report to the observer that a file is opened, or that an exception has left the script."""
    if event == "open" and _observer is not None and isinstance(args[0], str) and int(args[2] or 0) & _WRITES:
        _observer.opens(os.path.abspath(args[0]))
    if event == "sys.excepthook" and threading.get_ident() == threading.main_thread().ident:
        error, trace = args[2], args[3]
        known = observer() if "torch" in sys.modules else None
        if known is not None and isinstance(error, BaseException):
            known.died(error, trace)
