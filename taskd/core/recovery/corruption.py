"""Silent data corruption: states that ranks report are compared, and a difference leads to a report or a recovery.

Rules:

1. A difference is reported, with the ranks that are odd. If the job allows it, the odd ranks are replaced. Their new
   processes receive the state of the others, and the odd ranks give their state to no one.
2. If all ranks may have copies of a step at which all states were equal, all go back to that step instead. This also
   undoes the effect of an odd rank on the gradients of the others. Without such copies, that effect stays.
3. Without a majority no rank is replaced. If there are such copies, all ranks go back to them, also those that differ.
4. A part that was never seen to be equal may differ by the script's design, and is only reported. A difference that is
   found when no restart is left is only reported too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from taskd.core.diagnosis.account import who
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Diagnosis, Finding, Kind, names
from taskd.core.recovery.actions import Note
from taskd.core.recovery.case import close_case, open_case, report, take_up
from taskd.core.recovery.comparing import PART_NAMES, StateSplit
from taskd.core.recovery.events import Corrupted
from taskd.core.recovery.phases import Phase
from taskd.core.recovery.world import replica_sets
from taskd.wire.messages import NodeStatus, Stage

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job
    from taskd.wire.kinds import JobRank

_INSIDE: Final = (Stage.TRAINING, Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED)


def note_digests(job: "Job", phase: Phase, status: NodeStatus, now_s: float) -> Corrupted | None:
    """Compare the digests that the ranks of a node report. Return an event if a difference must be recovered from."""
    reported = [one for one in status.ranks if one.digests]
    if not reported or phase in (Phase.FORMING, Phase.FINISHING, Phase.STOPPED):
        return None
    world, comparison = job.world, job.comparison
    if comparison.generation != world.generation:
        comparison.begin(world.generation)
    for one in reported:
        view = world.ranks.get(one.rank)
        inside = one.generation == world.generation and one.stage in _INSIDE
        if inside and view is not None and view.incarnation == one.incarnation:
            comparison.hear(one.rank, one.digests)
    silent = comparison.waits_in_vain(world.ranks)
    if silent:
        text = f"{names(silent)} reported no digests: nothing is compared. Give TrainState(verify=…) on all ranks"
        job.out.append(Note(text, warns=True))
    if not comparison.complete(len(world.ranks)):
        return None
    sets = replica_sets(world)
    if not comparison.alone and len(set(sets.values())) == len(sets):
        comparison.alone = True
        job.out.append(Note("no rank has a replica: no states are compared (TrainState(verify=…))", warns=True))
    found = comparison.compare(sets)
    for key, part in found.unequal:
        who_all = names(rank for rank, of in sets.items() if of == key)
        text = f"{who_all} are replicas of one another, and each has another {PART_NAMES[part]} from the beginning"
        job.out.append(Note(f"{text}: that is the script's own doing, and is not compared", warns=True))
    return _act(job, phase, found.splits, now_s)


def _act(job: "Job", phase: Phase, splits: Sequence[StateSplit], now_s: float) -> Corrupted | None:
    """Report each difference, up to the first that must be recovered from; return the event for that one."""
    for split in splits:
        copied = all(view.replicas is not None and view.replicas.backs_up for view in job.world.ranks.values())
        verified = job.comparison.verified if copied else -1
        refusal = _refusal(job, phase, split, verified)
        diagnosis = _diagnosis(job, split, refusal)
        if not refusal:
            return Corrupted(diagnosis, split.odd, verified)
        if job.case.open:  # it belongs to the fault under way
            job.out.append(Note(diagnosis.sentence, warns=True))
            continue
        open_case(job, now_s)
        report(job, now_s, diagnosis, _evidence(job, split.ranks), reported=True)
        close_case(job)
    return None


def _refusal(job: "Job", phase: Phase, split: StateSplit, verified: int) -> str:
    """Return why the difference is only reported; "" if a recovery follows."""
    budget = job.budget
    if not job.policy.strategies.replace_corrupted:
        return "nobody is replaced for it (TASKD_CORRUPTION_RECOVERY is off)"
    if split.equal_at < 0:
        return "they were never seen to be equal, so it may be the script's own doing, and nobody is replaced"
    if not split.odd and verified < 0:
        return "there are no copies of a step at which they were equal (TrainState(backup_every=…)): nobody is replaced"
    if budget is not None and budget.spent >= budget.max_restarts:
        return "no restart is left, and nobody is replaced"
    if phase is not Phase.RUNNING:
        return "a recovery is under way or the training is over, and nobody is replaced"
    return ""


def _diagnosis(job: "Job", split: StateSplit, refusal: str) -> Diagnosis:
    evidence, odd = _evidence(job, split.ranks), split.odd
    parts = " and ".join(PART_NAMES[part] for part in split.parts)
    before = f"after step {split.equal_at} they were equal" if split.equal_at >= 0 else ""
    if odd:
        most = split.groups[0]
        told = ", ".join(who(rank, evidence[rank]) for rank in odd)
        what = f"{told} {'hold' if len(odd) > 1 else 'holds'} another state than {names(most)}"
        why = "most of the replicas are equal to one another"
    else:
        told = " and ".join(who(group[0], evidence[group[0]]) for group in split.groups)
        what = f"{told} hold different states" if len(split.ranks) == len(split.groups) else _halves(split)
        why = "which of them is right cannot be told, for none has a majority"
    sentence = f"silent data corruption: {what} after step {split.step} ({parts}). Why: {why}"
    sentence = "; ".join(filter(None, (sentence, before, refusal))) + "."
    text = f"holds another state than its replicas after step {split.step}: {parts}"
    accused = odd or split.ranks
    facts = tuple(Finding(rank, Kind.CORRUPTED, text) for rank in accused)
    return Diagnosis(Kind.CORRUPTED, odd, (), sentence, facts)


def _halves(split: StateSplit) -> str:
    return f"{' and '.join(f'({names(group)})' for group in split.groups)} hold different states"


def _evidence(job: "Job", ranks: Sequence["JobRank"]) -> "dict[JobRank, Evidence]":
    return {rank: Evidence(job.world.ranks[rank].node_rank) for rank in ranks}


def accuse(job: "Job", now_s: float, found: Corrupted) -> None:
    """Open a fault that its diagnosis explains, and replace the odd ranks."""
    take_up(job, now_s, explained=True)
    job.case.reported = found.diagnosis.kind, found.diagnosis.culprits
    ranks = tuple(fact.rank for fact in found.diagnosis.facts)
    report(job, now_s, found.diagnosis, _evidence(job, ranks), reported=False)
    for rank in found.odd:
        job.world.replace(rank, now_s, joins=True)
