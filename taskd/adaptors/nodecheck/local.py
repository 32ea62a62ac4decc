"""A check on this machine without any agent: its processes are forked from this one, which has imported torch.

Rules:

1. This process has one thread, or it does not fork: the caller ensures this (`quiet_imports`).
2. A child ends with this process, and has its order's time and a little more; then it is killed.
3. Whatever becomes of a child, there is an answer for its order.
"""

import contextlib
import importlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final, NoReturn

import msgspec

from taskd.core.nodecheck.probes import lost
from taskd.errors import ProbeError
from taskd.runtime.system.processes import end_with
from taskd.wire.checks import Trial
from taskd.wire.kinds import LocalRank
from taskd.wire.probes import ProbeOrder, ProbeResult

HERE: Final = "this machine"
_GRACE_S: Final = 2.0
_CHUNK_BYTES: Final = 1 << 16
_STORE_TIMEOUT_S: Final = 30.0


def quiet_imports() -> None:
    """Import the modules of the check, in such a way that no library starts threads."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's; torch has its own setting, set by each check process
    importlib.import_module("torch.distributed")
    importlib.import_module("taskd.adaptors.nodecheck.answer")


def default_nproc(device: str) -> int:
    """Return the number of processes: one for each accelerator; without one 2, for a trial, or 1 if there is one core.

    A child counts: a process that has used a driver cannot fork children that use it.
    """
    told, tell = os.pipe()
    child = _fork(lambda: os.write(tell, str(_count(device)).encode()))
    os.close(tell)
    try:
        text = os.read(told, 16) if select.select([told], [], [], _STORE_TIMEOUT_S)[0] else b""
    finally:
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int(text) if text else 1


def _count(device: str) -> int:
    import torch

    from taskd.adaptors.nodecheck.devices import present

    kind = device or present()
    if kind == "cpu":
        return min(2, len(os.sched_getaffinity(0)))
    module = getattr(torch, kind, None)
    return max(1, int(module.device_count())) if module is not None else 1


def check_node(orders: Sequence[ProbeOrder]) -> list[ProbeResult]:
    """Do the orders at the same time, each in a process of its own. The answers are in their order."""
    children: list[_Child] = []
    try:
        children.extend(map(_Child, orders))
        return _collect(children)
    finally:
        for child in children:
            child.end(late=True)  # the children that were not waited for


def halves(count: int, base: ProbeOrder, port: int) -> list[ProbeOrder]:
    """Return the orders of a trial between two halves of this machine's ranks, as if they were two nodes.

    The last of an odd number rests. The second half uses the devices after those of the first.
    """
    half, made = count // 2, []
    for first in (True, False):
        trial = Trial(peer=HERE, name=f"here-{os.getpid()}", first=first, store_host="127.0.0.1", store_port=port)
        for local_rank in map(LocalRank, range(half)):
            order = msgspec.structs.replace(base, own=False, trial=trial, local_rank=local_rank, local_world_size=half)
            offset = 0 if first else half
            made.append(msgspec.structs.replace(order, device_index=local_rank + offset))
    return made


@contextlib.contextmanager
def store_process(port: int = 0) -> Iterator[int]:
    """Run a process with a store for a trial; yield its port, by default chosen by the system.

    Raises:
        ProbeError: the store does not start in time.
    """
    told, tell = os.pipe()
    until, keep = os.pipe()
    child = _fork(lambda: _serve(port, tell, until))
    os.close(tell)
    os.close(until)
    try:
        text = os.read(told, 16) if select.select([told], [], [], _STORE_TIMEOUT_S)[0] else b""
        if not text:
            raise ProbeError(
                f"no TCPStore could be started on {HERE} within {_STORE_TIMEOUT_S:g} s; see what it printed"
            )
        yield int(text)
    finally:
        os.close(keep)
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(port: int, tell: int, until: int) -> None:
    from torch.distributed import TCPStore

    timeout = timedelta(seconds=_STORE_TIMEOUT_S)
    server = TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=timeout)
    os.write(tell, str(server.port).encode())
    os.read(until, 1)


class _Child:
    """One check process and the pipe that its answer comes through."""

    def __init__(self, order: ProbeOrder) -> None:
        from taskd.adaptors.nodecheck.answer import answer

        self.order = order
        self.start_s = time.monotonic()
        self.answer = bytearray()
        self._status: int | None = None
        self._reaped = False
        self.pipe, write = os.pipe()
        self.pid = _fork(lambda: answer(order, write))
        os.close(write)

    @property
    def deadline_s(self) -> float:
        return self.start_s + self.order.timeout_s + _GRACE_S

    def read(self) -> bool:
        """Read the data that has come; return whether more may come."""
        part = os.read(self.pipe, _CHUNK_BYTES)
        self.answer += part
        return bool(part)

    def end(self, *, late: bool = False) -> ProbeResult | None:
        """Kill and reap the child, once. Return its answer, or else the result that its end gives."""
        if self._reaped:
            return None
        elapsed_s = time.monotonic() - self.start_s
        if self.answer or late:
            os.kill(self.pid, signal.SIGKILL)  # its answer is complete
        _, status = os.waitpid(self.pid, 0)
        self._reaped = True
        os.close(self.pipe)
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(bytes(self.answer), type=ProbeResult)
        return lost(self.order, None if late else os.waitstatus_to_exitcode(status), elapsed_s)


def _collect(children: Sequence[_Child]) -> list[ProbeResult]:
    waiting = {child.pipe: child for child in children}
    results: dict[int, ProbeResult | None] = {}
    while waiting:
        now_s = time.monotonic()
        for pipe, child in [*waiting.items()]:
            if now_s >= child.deadline_s:
                results[child.pid] = waiting.pop(pipe).end(late=True)
        if not waiting:
            break
        nearest_s = min(child.deadline_s for child in waiting.values()) - now_s
        for pipe in select.select([*waiting], [], [], max(0.0, nearest_s))[0]:
            if not waiting[pipe].read():
                child = waiting.pop(pipe)
                results[child.pid] = child.end()
    found = [results[child.pid] for child in children]
    return [result for result in found if result is not None]


def _fork(work: Callable[[], object]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _live(work, parent)
    return child


def _live(work: Callable[[], object], parent: int) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
        if end_with(parent):
            work()
            status = 0
    finally:
        os._exit(status)
