"""Make one call of torchrun's own process fail, or record which of them run. Applied in a fork of the twin.

BREAKS names the call as MODULE:NAME or MODULE:CLASS.NAME, or as MODULE:LIBRARY.NAME for the module's call of a library.
ERROR names the error that it raises; with ONCE only its first call fails. CENSUS=FILE records all calls that run there.
"""

import errno
import functools
import importlib
import inspect
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.api import SignalException

MODULES: Final = (
    *(f"taskd.adaptors.torchrun.{name}" for name in ("agent", "host", "handles", "template_process", "store", "logs")),
    *(
        f"taskd.runtime.agent.{name}"
        for name in (
            "agent", "box_evidence", "collector", "deaths", "embedded", "given", "job_status", "loop",
            "manager_timeout", "node_checker", "observer", "rank_process", "rankfiles", "shape", "sockets", "standbys",
            "starts", "statuses", "supervisor", "teardown", "warm_up",
        )
    ),
    *(f"taskd.runtime.links.{name}" for name in ("links", "loopback", "monitor")),
    *(f"taskd.runtime.manager.{name}" for name in ("crowd", "journal", "manager")),
    *(f"taskd.runtime.{name}" for name in ("box.blackbox", "folders.jobfolder", "system.pidfd")),
    *(f"taskd.core.{name}" for name in ("agent", "recovery.machine")),
)  # fmt: skip
"""Modules whose code runs in torchrun while a job starts, loses a rank, recovers it and ends."""
LIBRARIES: Final = ("os", "select", "signal", "socket", "shutil", "subprocess", "tempfile", "threading", "zmq")
ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "EMFILE": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "RuntimeError": lambda: RuntimeError("broken by the test"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "KeyError": lambda: KeyError("broken by the test"),
}
SIGNAL: Final = "SIGTERM"
"""Value of ERROR with which torch's handler of signals raises in the midst of the call."""
_RELEASES: Final = frozenset(
    (
        "taskd.runtime.agent.agent:NodeAgent._desert",
        "taskd.runtime.agent.loop:AgentLoop._run",
        "taskd.runtime.agent.loop:AgentLoop._end",
        "taskd.runtime.agent.sockets:LocalServer.hang_up",
        "taskd.adaptors.torchrun.host:TorchrunHost.stock",
        "taskd.adaptors.torchrun.host:TorchrunHost._hand_over",
        "taskd.adaptors.torchrun.host:TorchrunHost.poll",
        "taskd.adaptors.torchrun.agent:TaskdElasticAgent._taskd_guarded",
        "taskd.adaptors.torchrun.agent:TaskdElasticAgent._taskd_or_part",
        "taskd.adaptors.torchrun.agent:TaskdElasticAgent._taskd_part",
    )
)
"""Calls that handle a failure. A failure in them would be a second fault."""
_SURE: Final = frozenset(
    ("getpid", "getuid", "get_ident", "fsencode", "strerror", "Lock", "RLock", "Event", "Condition")
)
"""Calls of libraries that fail for want of memory at most."""
_STOCK: Final = re.compile(r":(TaskdElasticAgent\.(?!_taskd)\w+|TaskdContext\.\w+|LeavableStore\.\w+)$")
"""Methods of torch's own classes: a failure in them is torch's."""


def calls() -> Iterator[str]:
    """Yield every call of the modules: their own functions and methods, functions that they import, and libraries'."""
    for name in MODULES:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == name:
                yield from (f"{name}:{key}.{one}" for one, it in vars(value).items() if _is_call(one, it))
            elif inspect.isfunction(value) and value.__module__.startswith("taskd."):
                yield f"{name}:{key}"
        for library in LIBRARIES:
            if isinstance(vars(module).get(library), ModuleType):
                text = inspect.getsource(module)
                found = sorted(set(re.findall(rf"(?<![\w.]){library}\.(\w+)\(", text)) - _SURE)
                yield from (f"{name}:{library}.{one}" for one in found)


def errors_of(call: str) -> tuple[str, ...]:
    """Return the errors of a call by its kind: a library's fails by the system, a decision or the codec by a bug."""
    module, _, names = call.partition(":")
    first = names.partition(".")[0]
    place = vars(importlib.import_module(module))[first]
    if isinstance(place, ModuleType):
        return ("EMFILE", "ENOSPC")
    if place.__module__.startswith(("taskd.core", "taskd.wire")):
        return ("RuntimeError", "KeyError")
    return tuple(ERRORS)


def _is_call(name: str, value: object) -> bool:
    return inspect.isfunction(value) and (name == "__init__" or not name.startswith("__"))


def breakable() -> tuple[str, ...]:
    """Return all calls but those of torch's own classes and those that handle failures."""
    return tuple(call for call in dict.fromkeys(calls()) if call not in _RELEASES and not _STOCK.search(call))


class _Library:
    """Stands for a library in one module, with one of its functions changed."""

    def __init__(self, library: ModuleType, name: str, changed: Any) -> None:
        self._library, self._name, self._changed = library, name, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed if name == self._name else getattr(self._library, name)


def change(call: str, around: Callable[[Any], Any]) -> None:
    """Replace a function by `around(function)`."""
    module, _, names = call.partition(":")
    place: Any = importlib.import_module(module)
    *parts, last = names.split(".")
    if parts and isinstance(library := vars(place)[parts[0]], ModuleType | _Library):
        vars(place)[parts[0]] = _Library(library, last, around(getattr(library, last)))  # type: ignore[arg-type]
        return
    for part in parts:
        place = getattr(place, part)
    setattr(place, last, around(vars(place)[last]))


def _signalled() -> Exception:
    return SignalException("broken by the test", signal.SIGTERM)


def apply() -> None:
    """Apply the environment's settings."""
    if file := os.environ.get("CENSUS"):
        seen: set[str] = set()
        for call in breakable():
            change(call, functools.partial(_recorded, call=call, file=Path(file), seen=seen))
    elif broken_call := os.environ.get("BREAKS"):
        fired, once = Path(os.environ["FIRED"]), "ONCE" in os.environ
        error = ERRORS.get(os.environ["ERROR"], _signalled)
        lock = threading.Lock()

        def broken(function: Any) -> Any:
            def fail(*args: Any, **kwargs: Any) -> Any:
                with lock:
                    first = not fired.exists()
                    if first:
                        fired.touch()
                if first or not once:
                    raise error()
                return function(*args, **kwargs)

            return fail

        change(broken_call, broken)


def _recorded(function: Any, call: str, file: Path, seen: set[str]) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        if call not in seen:
            seen.add(call)
            with file.open("a") as census:
                census.write(f"{call}\n")
        return function(*args, **kwargs)

    return record
