"""Results of a node, merged from the answers of its check processes, or from how they ended.

Rules:

1. The slowest local rank counts: the least rate that was measured (0.0 is no measurement), and the longest time.
2. One failure fails the node. The cause names the local ranks that it concerns.
3. A process that has ended without an answer has failed in everything that it was asked for.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from taskd.core.diagnosis.endings import in_words
from taskd.wire.checks import Own, TrialResult
from taskd.wire.kinds import LocalRank
from taskd.wire.probes import ProbeOrder, ProbeResult

CHECK_NAME: Final = "taskd-check"
"""Name of a process that checks its node, for tools that search for it (`/proc/PID/comm`)."""
_MOST_CAUSES: Final = 3


def lost(order: ProbeOrder, status: int | None, elapsed_s: float) -> ProbeResult:
    """Return the result that stands for a process without an answer.

    `status` is as in Python's subprocess, negative for a signal. None: the process had not ended in time, so it was
    killed.
    """
    if status is None:
        cause = f"its check process had not answered after {elapsed_s:.3g} s and was killed; expected an answer within"
        cause += f" {order.timeout_s:g} s: a device, disk or mount of the node that never answers keeps it"
    else:
        cause = f"its check process ended with {in_words(status)} after {elapsed_s:.3g} s, before it had answered"
    own = Own(ok=False, cause=cause, elapsed_s=elapsed_s) if order.own else None
    trial = order.trial
    failed = None if trial is None else TrialResult(peer=trial.peer, ok=False, cause=cause, elapsed_s=elapsed_s)
    return ProbeResult(local_rank=order.local_rank, own=own, trial=failed)


def merge_own(results: Iterable[ProbeResult]) -> Own | None:
    """Merge the own results of a node's processes; None if no process was asked for one."""
    found = [(result.local_rank, result.own) for result in results if result.own is not None]
    if not found:
        return None
    owns = [own for _, own in found]
    ok = all(own.ok for own in owns)
    return Own(
        ok=ok,
        cause=_cause([(rank, own.cause) for rank, own in found if own.ok == ok], len(found)),
        compute_tflops=_least(own.compute_tflops for own in owns),
        memory_gbps=_least(own.memory_gbps for own in owns),
        loopback_gbps=_least(own.loopback_gbps for own in owns),
        disk_mbps=_least(own.disk_mbps for own in owns),
        clock_s=max((own.clock_s for own in owns), key=abs),
        versions=_versions(owns),
        elapsed_s=max(own.elapsed_s for own in owns),
    )


def merge_trial(results: Iterable[ProbeResult]) -> TrialResult | None:
    """Merge the results of a node's processes for its trial; None if there was none."""
    found = [(result.local_rank, result.trial) for result in results if result.trial is not None]
    if not found:
        return None
    trials = [trial for _, trial in found]
    ok = all(trial.ok for trial in trials)
    return TrialResult(
        peer=trials[0].peer,
        ok=ok,
        cause=_cause([(rank, trial.cause) for rank, trial in found if trial.ok == ok], len(found)),
        gbps=_least(trial.gbps for trial in trials) if ok else 0.0,
        latency_s=max(trial.latency_s for trial in trials) if ok else 0.0,
        elapsed_s=max(trial.elapsed_s for trial in trials),
    )


def _least(rates: Iterable[float]) -> float:
    return min((rate for rate in rates if rate > 0.0), default=0.0)


def _versions(owns: Sequence[Own]) -> dict[str, str]:
    """Return one value for each name. Where local ranks differ, the value has all of theirs."""
    values: dict[str, list[str]] = {}
    for own in owns:
        for name, value in own.versions.items():
            known = values.setdefault(name, [])
            if value not in known:
                known.append(value)
    return {name: " / ".join(sorted(known)) for name, known in values.items()}


def _cause(found: Sequence[tuple[LocalRank, str]], of: int) -> str:
    """Return each cause once, after the local ranks that have it. On a node of one rank, the cause stands alone."""
    ranks: dict[str, list[LocalRank]] = {}
    for rank, cause in found:
        if cause:
            ranks.setdefault(cause, []).append(rank)
    told = [_whose(who, of) + cause for cause, who in ranks.items()]
    more = len(told) - _MOST_CAUSES
    return "; ".join(told[:_MOST_CAUSES]) + (f"; and {more} more" if more > 0 else "")


def _whose(ranks: Sequence[LocalRank], of: int) -> str:
    if of == 1:
        return ""
    if len(ranks) == of:
        return "all local ranks: "
    return f"local rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: "
