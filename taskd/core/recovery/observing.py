"""Reports of ranks beside their stages: their progress, their speed, and the evidence of their processes."""

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.recovery.actions import Note
from taskd.core.recovery.case import OWN_ERRORS, STEPS_AHEAD, close_case, open_case, report_diagnosis
from taskd.core.recovery.events import RestartAsked
from taskd.core.recovery.job import Job
from taskd.core.recovery.pace import note_not_finite, note_spans
from taskd.core.recovery.phases import LIVE, Phase
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import NodeStatus


def note_progress(job: Job, phase: Phase, status: NodeStatus, place: NodeRank, now_s: float) -> None:
    """Record how far the ranks of a node are, and how fast."""
    if phase not in (Phase.RUNNING, Phase.SUSPECTING):
        return
    case, watch = job.case, job.case.watch
    watch.progress(place, status.progress, now_s)
    step = status.progress.step if status.progress is not None else -1
    if case.open and job.record is None and step > case.opened_at + STEPS_AHEAD:  # the failed rank lives
        close_case(job)
        watch.close()
    job.step = max(job.step, step)
    _note_end_of_doubt(job, now_s)
    if status.spans:
        note_spans(job, status.spans)


def _note_end_of_doubt(job: Job, now_s: float) -> None:
    watch, rhythm = job.case.watch, job.case.watch.rhythm.rhythm
    doubt = watch.doubt
    if doubt is not None and rhythm.step > doubt.step:
        watch.doubt = None
        took_s = (rhythm.progress_s or now_s) - doubt.since_s
        job.out.append(Note(f"the job gets on: it was at work for {took_s:.1f} s, which is known from now on"))


def note_evidence(
    job: Job, phase: Phase, agent_id: str, probe: int, evidence: Mapping[JobRank, Evidence], now_s: float
) -> None:
    """Record an agent's evidence of its processes. Evidence of ranks that are not its own is ignored."""
    places, case = job.world.nodes.known_places(agent_id), job.case
    if not places:
        return
    at = {rank: place for rank in evidence if (place := job.policy.place_of(rank)) in places}
    own = {rank: _on_node(evidence[rank], place) for rank, place in at.items()}
    case.watch.hear(agent_id, probe, own, now_s)
    seen = {rank: known for rank, known in own.items() if known.non_finite is not None}
    if seen:
        note_not_finite(job, now_s, seen)
    live = phase in LIVE
    if phase is Phase.RESUMING and case.watch.hang is not None:
        return  # the probe concerned the new world; the fault is known
    if case.open and (job.record is not None or case.reported is None):
        report_diagnosis(job, now_s, live=live)
    elif not case.open and live and case.watch.hang is None:
        _note_own_error(job, now_s)


def _on_node(known: Evidence, place: NodeRank) -> Evidence:
    """Return the evidence of a rank with its place, which its agent may not know or report."""
    return known if known.node == place else replace(known, node=place)


def restart_asked(job: Job) -> RestartAsked | None:
    """Return the first living rank's request for a restart of all processes; None without one.

    Requests of ended processes are dropped. All are dropped if the launcher does not let this job restart processes.
    """
    for rank in sorted(job.world.asking):
        view = job.world.ranks.get(rank)
        known = view.known if view is not None and not view.gone else None
        if known is not None and known.anew and job.policy.strategies.restart_all:
            return RestartAsked(rank, known.anew)
        job.world.asking.discard(rank)
    return None


def _note_own_error(job: Job, now_s: float) -> None:
    """Report the error that a dying rank has reported of itself."""
    diagnosis = job.case.watch.diagnosis(job.world.ranks, now_s)
    if diagnosis is not None and diagnosis.kind in OWN_ERRORS:
        open_case(job, now_s)
        report_diagnosis(job, now_s, live=True)
