"""A tripwire that stops a training function, after its collectives were broken, at the next collective or DDP forward.

Rules:

1. A step pays nothing, because the tripwire is laid only for the length of a pause. torch's functions look up the
   replaced names when they are called, so functions that the script has imported are caught too.
2. Only the thread that runs the training function is stopped, and only while `inside` is true.
3. `Interrupted`, which stops the function, is no `Exception`. A script that swallows exceptions lets it pass. A script
   that swallows everything is slowed down.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.runtime.worker.stacks import training_thread

_LONGEST_S: Final = 1.0
_STEP_S: Final = 0.01


class Interrupted(BaseException):
    """Exit from the resilient function, at a commit or a collective, because a peer has failed.

    taskd catches it; let it pass. It is no `Exception`, so a script that continues after every error lets it pass.
    """


def interrupt() -> None:
    """Raise `Interrupted`, which leaves the resilient function."""
    raise Interrupted


class Tripwire:
    """Trap on torch's collectives and DDP's forward passes. Any thread may lay and lift it.

    `stop` raises the exception that leaves the training function.
    """

    def __init__(self, inside: Callable[[], bool], stop: Callable[[], None]) -> None:
        self._inside = inside
        self._stop = stop
        self._lock = threading.Lock()
        self._former: tuple[Any, Any] | None = None
        self._allowed: Any = None
        """torch's own function while `forbid` replaces it."""
        self._times = 0

    def lay(self) -> None:
        """Make every collective of torch's Python functions, and every DDP forward pass, raise from now on."""
        with self._lock:
            if self._former is None:
                member, forward = self._allowed or c10d._rank_not_in_group, DistributedDataParallel._pre_forward
                self._former = member, forward
                self._times = 0
                self._put(self._guarded(member), self._guarded(forward))

    @contextmanager
    def forbid(self, why: str) -> Iterator[None]:
        """Make collectives of the calling thread raise `RuntimeError(why)` within the context."""
        thread = threading.get_ident()

        def forbidding(*_: Any, **__: Any) -> Steps:
            if threading.get_ident() == thread:
                raise RuntimeError(why)
            return (yield ORIGINAL)

        with self._lock:
            first = self._former is None  # else a collective raises `Interrupted` anyway
            if first:
                self._allowed = c10d._rank_not_in_group
                c10d._rank_not_in_group = around(self._allowed, forbidding)
        try:
            yield
        finally:
            with self._lock:
                if first and self._former is None:
                    c10d._rank_not_in_group = self._allowed
                self._allowed = None

    def lift(self) -> None:
        """Restore torch's own functions."""
        with self._lock:
            if self._former is not None:
                self._put(*self._former)
                self._former = None

    def _put(self, member: Any, forward: Any) -> None:
        for owner, name, call in (
            (c10d, "_rank_not_in_group", member),
            (DistributedDataParallel, "_pre_forward", forward),
        ):
            setattr(owner, name, call)

    def _guarded(self, call: Callable[..., Any]) -> Any:
        def guarded(*_: Any, **__: Any) -> Steps:
            if threading.get_ident() == training_thread() and self._inside():
                time.sleep(min(_LONGEST_S, _STEP_S * self._times))
                self._times += 1
                self._stop()
            return (yield ORIGINAL)

        return around(call, guarded)
