"""One resilient function at a time: one that is called inside another is refused, on every rank alike.

A recovery calls a training function again from its beginning. With two nested ones it would be unknown which to call
again, and a process that joins later reaches only the outer one.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from taskd.errors import ConfigError

_OURS: Final = "taskd.adaptors.trainers."
_running: Final[dict[tuple[int, int], str]] = {}
"""Running function by process and thread: a forked child runs none."""


@contextmanager
def only_one(function: Callable[..., Any], *, of_process: bool) -> Iterator[None]:
    """Register this resilient function while the body runs. `of_process`: no other thread may run one either.

    Raises:
        ConfigError: another resilient function runs.
    """
    own = os.getpid(), threading.get_ident()
    others = [name for (pid, thread), name in _running.items() if pid == own[0] and (of_process or thread == own[1])]
    name = name_of(function)
    if others:
        raise ConfigError(
            f"found {name} called while {others[0]} runs, and both are resilient; expected one resilient function at a "
            f"time: take @taskd.resilient, or the trainer's, from one of them, or call them one after the other"
        )
    _running[own] = name
    try:
        yield
    finally:
        del _running[own]


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name and place, or the trainer whose loop it is."""
    module = getattr(function, "__module__", None) or ""
    if module.startswith(_OURS):
        return f"the training of taskd.{module[len(_OURS) :].partition('.')[0]}"
    name = f"{getattr(function, '__qualname__', type(function).__name__)}()"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name
