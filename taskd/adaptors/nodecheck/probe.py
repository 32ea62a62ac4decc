"""The whole work of one check process, within its time.

Rules:

1. The work is done on a thread of its own, and the thread that watches the time gives the result. A device, disk or
   mount that never answers costs the timeout, and the result names it.
2. A failure ends one probe, not the check: the cause names all of them.
3. A process that has done an order is of no further use. It ends by `os._exit`, since a thread may hang in it and the
   destructors of groups wait for their peers.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import torch

from taskd.adaptors.nodecheck.compute import compute
from taskd.adaptors.nodecheck.devices import Device, find, one_line, versions
from taskd.adaptors.nodecheck.disk import disk
from taskd.adaptors.nodecheck.loopback import loopback
from taskd.adaptors.nodecheck.memory import memory
from taskd.adaptors.nodecheck.throttling import Quotas
from taskd.adaptors.nodecheck.trial import run_trial
from taskd.errors import ProbeError
from taskd.wire.checks import Own, TrialResult
from taskd.wire.probes import ProbeOrder, ProbeResult

logger = logging.getLogger(__name__)

_LAST_SHARE: Final = 0.05
_LAST_S: Final = 0.5
"""Part of the time that is kept for the answer: this share of it, and at most so many seconds."""
_WORTH_TELLING: Final = 0.15
_T = TypeVar("_T")


def run_probe(order: ProbeOrder) -> ProbeResult:
    """Do an order. Never raises, and returns within `order.timeout_s`. Rule 3 holds for this process."""
    limit_s = order.timeout_s - min(_LAST_S, order.timeout_s * _LAST_SHARE)
    sheet = _Sheet(order, time.monotonic() + limit_s)
    worker = threading.Thread(target=sheet.fill, name="taskd-probe", daemon=True)
    worker.start()
    worker.join(limit_s)
    return sheet.result()


@dataclass
class _Sheet:
    """The findings so far, filled in by one thread and read by another."""

    order: ProbeOrder
    deadline_s: float
    stage: str = "the start"
    done: bool = False
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    start_s: float = field(default_factory=time.monotonic)
    own_s: float | None = None
    trial: TrialResult | None = None

    def fill(self) -> None:
        """Do the work."""
        try:
            self._work()
        except Exception as error:  # the top of a thread: an unexpected error is the result
            logger.exception("the check process of local rank %d failed in %s", self.order.local_rank, self.stage)
            self.failures.append(f"{self.stage}: {type(error).__name__}: {one_line(error)}")
        self.done = True

    def _work(self) -> None:
        torch.set_num_threads(1)
        device = self._try("device", self._device)
        if self.order.own:
            if device is not None:
                self._check(device)
            self.own_s = time.monotonic() - self.start_s
        if self.order.trial is not None and device is not None:
            self.trial = run_trial(self.order, device, self.deadline_s, self._enter)

    def _enter(self, stage: str) -> None:
        self.stage = stage

    def _device(self) -> Device:
        order = self.order
        index = order.local_rank if order.device_index < 0 else order.device_index
        device = find(order.device, index, order.local_world_size)
        device.select()
        if order.own:
            device.check_unused()
        return device

    def _check(self, device: Device) -> None:
        order, quotas = self.order, Quotas()
        self.versions = self._try("versions", lambda: versions(device)) or {}
        found = self._try("compute", lambda: compute(device, order.local_world_size))
        if found is not None:
            self.rates["compute_tflops"] = found.tflops
            self._explain(found.waited, quotas)
        self._rate("memory_gbps", "memory", lambda: memory(device))
        if order.local_rank == 0:  # one rank is enough: the node has one of these
            self._rate("loopback_gbps", "loopback", lambda: loopback(order.address))
            if order.run_dir:
                self._rate("disk_mbps", "disk", lambda: disk(os.fsdecode(order.run_dir)))

    def _explain(self, waited: float, quotas: Quotas) -> None:
        periods, directory = quotas.stopped_since()
        if periods:
            self.notes.append(f"the CPU quota of {directory} stopped it while it computed")
        elif waited > _WORTH_TELLING:
            share = "most" if waited > 0.5 else "part"
            self.notes.append(f"it waited for a CPU {share} of the time while it computed: other processes use it too")

    def _rate(self, name: str, stage: str, probe: Callable[[], float]) -> None:
        rate = self._try(stage, probe)
        if rate is not None:
            self.rates[name] = rate

    def _try(self, stage: str, probe: Callable[[], _T]) -> _T | None:
        self.stage = stage
        try:
            return probe()
        except (ProbeError, OSError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError for a device
            self.failures.append(f"{stage}: {one_line(error)}")
        return None

    def result(self) -> ProbeResult:
        """Return the result by the findings so far."""
        elapsed_s = time.monotonic() - self.start_s
        hung = "" if self.done else f"{self.stage} did not end within the {self.order.timeout_s:g} s that there were"
        own = self._own(hung, elapsed_s) if self.order.own else None
        return ProbeResult(
            local_rank=self.order.local_rank, own=own, trial=self._trial(hung, elapsed_s) if self.order.trial else None
        )

    def _own(self, hung: str, elapsed_s: float) -> Own:
        failures = list(self.failures)
        if hung and self.own_s is None:
            failures.append(hung)
        return Own(
            ok=not failures,
            cause="; ".join(failures or self.notes),
            versions=dict(self.versions),
            elapsed_s=elapsed_s if self.own_s is None else self.own_s,
            **self.rates,
        )

    def _trial(self, hung: str, elapsed_s: float) -> TrialResult:
        assert self.order.trial is not None
        if self.trial is not None:
            return self.trial
        cause = hung or "; ".join(self.failures)
        return TrialResult(peer=self.order.trial.peer, ok=False, cause=cause, elapsed_s=elapsed_s)
