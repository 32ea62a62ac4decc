"""Groups of NCCL: the needs of a recovery in place beyond those of gloo's groups.

Rules:

1. An NCCL kernel that waits for a lost peer waits without end, and everything that waits for the device waits with it.
   `abort` ends such kernels. It raises nowhere, and the results of these kernels are invalid.
2. So code that changes the training state by such results calls `Verified` first. It waits for the device, and leaves
   the training function if its groups were broken meanwhile. torchft waits in each step for the same reason.
3. torch's watchdog ends a healthy process too when a peer is lost. It does not in a process whose script uses taskd
   (`spare`). Other processes keep torchrun's setting.
4. The watchdog of an older world leaves a key in the store that would end even new processes minutes later.
   `forget_alarm` deletes it before the default group is formed.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from taskd.config.process import leave_alone_at_nccl_errors
from taskd.runtime.system.hidden import HiddenThread

_log = logging.getLogger(__name__)
_ALARM: Final = "exception_dump"
_OURS: Final = str(Path(__file__).parents[2])
_PUBLIC: Final = frozenset({"TrainState", "resilient"})
_TRAINERS: Final = tuple(
    f"taskd.{name}" for name in ("accelerate", "deepspeed", "hf", "lightning", "megatron", "titan")
)


def spare() -> None:
    """Let this process survive a lost peer of NCCL groups made from now on, if its script uses taskd."""
    if _uses_taskd():
        leave_alone_at_nccl_errors()


def forget_alarm(store: Store) -> None:
    """Delete the alarm key from a job's store: by it the watchdogs of NCCL's groups make each other dump and end."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if c10d.is_nccl_available():
        with suppress(RuntimeError, NotImplementedError):  # a store of the script's own may not be able to
            store.delete_key(_ALARM)


def backends(groups: Iterable[Any]) -> list[Any]:
    """Return those of these groups that are NCCL's."""
    if not (torch.cuda.is_available() and c10d.is_nccl_available()):
        return []
    found = (_backend(group) for group in groups)
    return [backend for backend in found if isinstance(backend, c10d.ProcessGroupNCCL)]


def abort(groups: Iterable[Any]) -> int:
    """End the kernels of these groups, from threads: one may wait for another's. Return how many groups there are."""
    found = backends(groups)
    for backend in found:
        HiddenThread(partial(_abort, backend), "taskd-abort")
    return len(found)


class Verified:
    """The check that a training uses only results that its device has really computed.

    Args:
        groups: returns the present process groups.
        leave: raises the exception that leaves the training function, if its groups are broken.
    """

    def __init__(self, groups: Callable[[], Iterable[Any]], leave: Callable[[], None]) -> None:
        self._groups = groups
        self._leave = leave
        self._sent: list[int] = []
        self._hook: Any = None

    def begin(self) -> bool:
        """Check before each optimizer's step from now on, if there are groups of NCCL; return whether there are."""
        if self._hook is None and backends(self._groups()):
            self._hook = register_optimizer_step_pre_hook(lambda *_: self.look())
        return self._hook is not None

    def end(self) -> None:
        """Stop the checks."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def look(self) -> None:
        """Wait until all data has arrived that this step has requested from its peers. Raises what `leave` raises."""
        sent = self._numbers()
        torch.cuda.current_stream().synchronize()
        self._sent = sent
        self._leave()

    def look_again(self) -> None:
        """Wait as `look` does, if something was requested since."""
        if self._numbers() != self._sent:
            self.look()

    def _numbers(self) -> list[int]:
        return [int(backend._get_sequence_number_for_group()) for backend in backends(self._groups())]


def _backend(group: Any) -> Any:
    try:
        return group._get_backend(torch.device("cuda"))
    except RuntimeError:  # it has no backend for that device
        return None


def _abort(backend: Any) -> None:
    try:
        backend.abort()
    except RuntimeError as error:  # slower than its own timeout: it goes on
        _log.warning("a group of NCCL has not ended yet: %s", error)


def _uses_taskd() -> bool:
    """Return whether the script has imported the part of taskd that keeps its training function going."""
    taskd = sys.modules.get("taskd")
    if taskd is None or _OURS not in getattr(taskd, "__path__", ()):  # the user may have a folder of this name
        return False
    if not _PUBLIC.isdisjoint(vars(taskd)) or any(name in sys.modules for name in _TRAINERS):
        return True
    others = [module for name, module in list(sys.modules.items()) if not name.startswith("taskd")]
    return any(_names(module).get("taskd") is taskd for module in others) or any(
        value is taskd for value in vars(sys.modules["__main__"]).values()
    )


def _names(module: object) -> dict[str, object]:
    """Return a module's names without `getattr`: a lazily loaded module would be loaded."""
    names: dict[str, object] = object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
    return names
