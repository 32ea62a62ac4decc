"""A collective between the ranks of two nodes: it tests arrival and content, and measures the link's speed.

Rules:

1. The group is an object of its own: nothing of `torch.distributed`'s global state is touched. The nodes meet at the
   store of the first one, under the trial's name.
2. All ranks decide alike how to go on, since they decide by times that all of them have. After each transfer a small
   all-gather exchanges its durations, and the longest counts. It is also the barrier before the next one.
3. Transfers grow until one takes long enough to be measured. So a slow link is measured in small ones, and in time. Of
   the last ones the fastest counts: a busy CPU makes some of them slow, a slow link all.
4. Every element that arrives is compared. A slow link is a result; a cut link is a failure within the timeout.
"""

import contextlib
import re
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, TCPStore

from taskd.adaptors.nodecheck.devices import Device, one_line
from taskd.adaptors.seams.worker import STORED
from taskd.errors import ProbeError
from taskd.wire.checks import Trial, TrialResult
from taskd.wire.probes import ProbeOrder

_WORD_BYTES: Final = 4
_FIRST_BYTES: Final = 64 << 10
_MOST_BYTES: Final = {"cpu": 64 << 20}
_MOST_DEVICE_BYTES: Final = 256 << 20
"""Most bytes through the link in one transfer, in each direction."""
_LONG_ENOUGH_S: Final = 0.01
_MOST_GROWTH: Final = 8
_SAMPLES: Final = 12
_BUDGET_S: Final = 0.25
"""Time for the samples, in seconds: on a slow link there are fewer, but one at least."""
_PINGS: Final = 20
_ROUND_STEP: Final = 7_919
_RANK_STEP: Final = 1_000_003
_RETRY_S: Final = 0.1
_AWAITED: Final = re.compile(r"^wait timeout .* keys: /[^,]*/(\d+)$")
_kept: list[Any] = []
"""Groups are never destroyed: that may wait for a peer, and the process ends anyway."""
_WATCHDOG: Final = timedelta(seconds=60)
_STORE_SHARE: Final = 0.95
"""Share of the remaining time for torch's own timeouts: they come before ours, since they name the peer."""


def run_trial(order: ProbeOrder, device: Device, deadline_s: float, tell: Callable[[str], None]) -> TrialResult:
    """Take part in the trial of `order`; `deadline_s` is on the monotonic clock. `tell` receives each stage."""
    trial, start_s = order.trial, time.monotonic()
    assert trial is not None
    per_node = order.local_world_size
    rank = order.local_rank if trial.first else per_node + order.local_rank
    stage = ""

    def enter(name: str) -> timedelta:
        """Enter the next stage; return the time that is left for it."""
        nonlocal stage
        stage = name
        tell(f"the trial with {trial.peer}: {name}")
        return _left(deadline_s)

    def failed(error: Exception) -> TrialResult:
        names = ("this node", trial.peer) if trial.first else (trial.peer, "this node")
        cause = f"{stage} failed: {_why(one_line(error), names, per_node)}"
        return TrialResult(peer=trial.peer, ok=False, cause=cause, elapsed_s=time.monotonic() - start_s)

    try:
        where, timeout = (trial.store_host, trial.store_port), enter("reaching the store")
        _reach(*where, timeout.total_seconds())
        client = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=enter("talking to the store"))
        store, timeout = PrefixStore(_prefix(trial), client), enter("forming the group")
        group = _group(device, store, rank, 2 * per_node, timeout)
        _kept.append(group)
        pair = _Pair(group, rank, 2 * per_node, device, deadline_s)
        enter("the first collective")
        pair.agree_us(0)
        enter("measuring")
        latency_s = pair.latency_s()
        gbps = pair.gbps()
        enter("leaving")
        _leave(client, store, _prefix(trial), rank, 2 * per_node)
    except (RuntimeError, ValueError, OSError, ProbeError) as error:  # all that c10d, gloo and NCCL raise
        return failed(error)
    return TrialResult(peer=trial.peer, ok=True, gbps=gbps, latency_s=latency_s, elapsed_s=time.monotonic() - start_s)


def _why(text: str, names: tuple[str, str], per_node: int) -> str:
    """Return the cause in words, without anything that differs by rank.

    It names the rank that did not come if the error does: gloo then waits for the key of that rank.
    """
    if text.startswith("Timed out waiting"):
        return "the peer or the link was silent until the time was over"
    awaited = _AWAITED.search(text)
    if awaited is None:
        return text
    node, local_rank = divmod(int(awaited[1]), per_node)
    return f"local rank {local_rank} of {names[node]} did not come"


def _reach(host: str, port: int, timeout_s: float) -> None:
    """Return when a server answers there; torch's client keeps no timeout where a network refuses its packets."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), max(_RETRY_S, end_s - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() + _RETRY_S >= end_s:
                why = error.strerror or str(error)
                raise ProbeError(
                    f"{host}:{port} does not answer ({why}), expected the store of the first node"
                ) from error
        time.sleep(_RETRY_S)  # nothing signals that a port of another machine opens


def _left(deadline_s: float) -> timedelta:
    """Return the timeout of a step that starts now."""
    return timedelta(seconds=max(0.1, (deadline_s - time.monotonic()) * _STORE_SHARE))


def _group(device: Device, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> Any:
    if device.backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    timeout += _WATCHDOG  # the watchdogs of these end the process, which must have answered before
    if device.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    # Never run on a device by this project's tests.
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL  # type: ignore[import-not-found]

    options = ProcessGroupHCCL.Options()
    options._timeout = timeout
    return ProcessGroupHCCL(store, rank, size, options)


def _prefix(trial: Trial) -> str:
    return f"taskd-check/{trial.store_key}/{trial.name}"


def _leave(client: TCPStore, store: PrefixStore, prefix: str, rank: int, size: int) -> None:
    """Wait until all have all they need of each other; the last rank to report so deletes the trial's keys."""
    if store.add("left", 1) == size:
        store.set("all", "left")
        with contextlib.suppress(RuntimeError):  # keys that stay do no harm
            known = [f"{prefix}/{key}" for key in ("left", *(f"0/{rank}" for rank in range(size)))]
            for key in STORED.find().use(client, lambda: known):
                if f"{prefix}/" in key and not key.endswith("/all"):
                    client.delete_key(key)
    else:
        with contextlib.suppress(dist.DistNetworkError):  # the host of the store leaves after the last rank has come
            store.wait(["all"])


class _Pair:
    """The group of two nodes, in the view of one rank of it."""

    def __init__(self, group: Any, rank: int, size: int, device: Device, deadline_s: float) -> None:
        self._group = group
        self._rank = rank
        self._size = size
        self._device = device
        self._deadline_s = deadline_s
        self._round = 0
        self._mine = self._words(1)
        self._all = self._words(size)

    def agree_us(self, elapsed_us: int) -> int:
        """Return the highest value of any rank; all of them get the same."""
        self._mine.fill_(elapsed_us)
        self._gather(self._all, self._mine)
        return int(self._all.max())

    def latency_s(self) -> float:
        """Return the lower quartile of small all-gathers: a busy core makes many of them slow, a slow link all."""
        times_s = sorted(self._timed(lambda: self._gather(self._all, self._mine)) for _ in range(_PINGS))
        return times_s[_PINGS // 4]

    def gbps(self) -> float:
        """Return the rate at which data arrives at this node through the link, in 10**9 bytes a second.

        An all-gather goes round a ring. In each direction the link between two nodes carries the parts of all ranks but
        one.
        """
        most_bytes = _MOST_BYTES.get(self._device.kind, _MOST_DEVICE_BYTES)
        passing = self._size - 1
        words = _FIRST_BYTES // passing // _WORD_BYTES
        most_words = most_bytes // passing // _WORD_BYTES
        while True:
            times_s = self._transfers(words, 0.0 if words >= most_words else _LONG_ENOUGH_S)
            if times_s[0] >= _LONG_ENOUGH_S or words >= most_words:
                return passing * words * _WORD_BYTES / min(times_s) / 1e9
            growth = max(2.0, min(_MOST_GROWTH, 1.2 * _LONG_ENOUGH_S / times_s[0]))
            words = min(most_words, int(words * growth))

    def _transfers(self, words: int, enough_s: float) -> list[float]:
        """Return the times of transfers in which each rank sends so many words.

        There is one time if it is below `enough_s`, else as many as fit into the budget.
        """
        base = torch.arange(words, dtype=torch.int32, device=self._device.torch)
        mine, everyone = torch.empty_like(base), self._words(words * self._size)
        times_s: list[float] = []
        while not times_s or (
            times_s[0] >= enough_s and len(times_s) < _SAMPLES and sum(times_s) + times_s[-1] < _BUDGET_S
        ):
            self._round += 1
            torch.add(base, self._mark(self._rank), out=mine)
            self.agree_us(0)  # all are ready
            took_s = self._timed(lambda: self._gather(everyone, mine))
            times_s.append(max(1, self.agree_us(int(took_s * 1e6))) / 1e6)
            self._check(base, everyone)
        return times_s

    def _check(self, base: torch.Tensor, everyone: torch.Tensor) -> None:
        for rank, part in enumerate(everyone.view(self._size, -1)):
            part.sub_(self._mark(rank))
            if not torch.equal(part, base):
                wrong = int((part != base).sum())
                raise ProbeError(f"{wrong} of {base.numel()} words from rank {rank} of the pair arrived changed")

    def _mark(self, rank: int) -> int:
        """Return a number that differs by rank and round: words that stayed from another round fail the check."""
        return rank * _RANK_STEP + self._round * _ROUND_STEP

    def _words(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self._device.torch)

    def _gather(self, everyone: torch.Tensor, mine: torch.Tensor) -> None:
        options = AllgatherOptions()
        if self._device.backend == "gloo":
            options.timeout = _left(self._deadline_s)
        self._group._allgather_base(everyone, mine, options).wait()

    def _timed(self, transfer: Callable[[], None]) -> float:
        start_s = time.perf_counter()
        transfer()
        self._device.synchronize()
        return time.perf_counter() - start_s
