"""Conversion of a black box's content to evidence on its process.

Rules:

1. Times become ages here, by the clock of this node.
2. A box that is closed or damaged gives no evidence, and is no error. An impossible value (a step beyond all steps) is
   left out: with it the whole report on the node's ranks could not be sent.
"""

from time import monotonic_ns
from typing import Final

from taskd.core.diagnosis.evidence import (
    Blockers,
    Clocks,
    Collective,
    Communicator,
    EndSigns,
    Evidence,
    FatalSignal,
    PythonError,
    RankCalls,
    RankPosition,
    Sender,
    Standing,
)
from taskd.core.diagnosis.facts import flat, of_facts
from taskd.errors import ShimError
from taskd.runtime.box import postmortem as noted
from taskd.runtime.box.blackbox import Backend, Box, BoxEvent, BoxPhase, Life, Reading
from taskd.runtime.system.processes import name
from taskd.wire.codec import sendable

_ENQUEUED: Final = (Backend.NCCL, Backend.HCCL)
_STANDINGS: Final[dict[int, Standing]] = {
    BoxPhase.STARTING: Standing.STARTING,
    BoxPhase.TRAINING: Standing.TRAINING,
    BoxPhase.PAUSED: Standing.PAUSED,
    BoxPhase.REBUILDING: Standing.PAUSED,
    BoxPhase.RESTORING: Standing.PAUSED,
    BoxPhase.FINISHED: Standing.FINISHED,
}


def tell(box: Box | None, most_events: int) -> Evidence:
    """Return a box's evidence, with at most `most_events` operations; empty without a box or its claim."""
    if box is None:
        return Evidence()
    try:
        said = box.read()
        if not said.claims:
            return Evidence()
        left, operations, communicators = box.postmortem(said), box.operations(most=most_events), box.communicators()
        kernel = box.kernel()
    except ShimError:
        return Evidence()
    now_ns = monotonic_ns()
    told = Evidence(
        end=EndSigns(
            life_lost=said.life is Life.LOST,
            fatal=_fatal(left.fault, now_ns),
            terminated_by=_sender(left.request.sender, left.request.at_ns) if left.request is not None else None,
            error=_error(left.last_words, said),
        ),
        clocks=Clocks(
            native_s=_age_s(said.native_ns, now_ns),
            gil_s=_unanswered_s(said.gil_asked_ns, said.gil_ns, now_ns),
            main_s=_unanswered_s(said.main_asked_ns, said.main_ns, now_ns),
        ),
        position=RankPosition(
            step=said.step,
            step_s=_age_s(said.step_ns, now_ns),
            standing=_STANDINGS.get(said.phase),
            standing_s=_age_s(said.phase_ns or said.claimed_ns, now_ns),
        ),
        calls=RankCalls(
            communicators=tuple(
                Communicator(one.id, one.number, one.rank, one.ranks) for one in communicators if not one.closed
            ),
            collectives=tuple(_collective(event, said, now_ns) for event in operations),
            kernel_s=None if kernel is None else 0.0 if kernel.left_ns else _age_s(kernel.entered_ns, now_ns),
        ),
        blockers=Blockers(data_wait_s=_age_s(said.data_since_ns, now_ns)),
    )
    if sendable(told):
        return told
    return of_facts({name: value for name, value in flat(told).items() if sendable(of_facts({name: value}))})


def _age_s(at_ns: int, now_ns: int) -> float | None:
    return max(0.0, (now_ns - at_ns) / 1e9) if at_ns else None


def _unanswered_s(asked_ns: int, answered_ns: int, now_ns: int) -> float | None:
    if asked_ns:
        return _age_s(asked_ns, now_ns)
    return 0.0 if answered_ns else None


def _sender(sender: noted.BoxSender | None, at_ns: int) -> Sender | None:
    """Return the sender, with its name if the pid still belongs to the process that sent the signal."""
    return None if sender is None else Sender(sender.pid, sender.uid, name(sender.pid, at_ns / 1e9))


def _fatal(fault: noted.BoxSignal | None, now_ns: int) -> FatalSignal | None:
    if fault is None:
        return None
    frames = tuple(map(str, fault.frames))
    sender = _sender(fault.sender, fault.at_ns or now_ns)
    return FatalSignal(fault.signum, fault.address, fault.thread, frames, sender, fault.handled)


def _error(words: noted.LastWords | None, said: Reading) -> PythonError | None:
    """Return the error; None if the process has survived it and trains again."""
    if words is None or (said.phase == BoxPhase.TRAINING and words.at_ns < said.phase_ns):
        return None
    return PythonError(words.kind, words.message, words.where, main=words.tid == said.owner_pid)


def _collective(event: BoxEvent, said: Reading, now_ns: int) -> Collective:
    return Collective(
        op=event.operation,
        comm=event.comm,
        number=event.number,
        bytes=event.bytes,
        peer=event.peer,
        entered_s=_age_s(event.entered_ns, now_ns),
        left_s=_age_s(event.left_ns, now_ns),
        step=said.step + 1 if said.step >= 0 and 0 < said.step_ns <= event.entered_ns else None,
        enqueued=event.backend in _ENQUEUED,
    )
