"""One diagnosis from the evidence of all ranks: the fault, its culprits, and its victims.

Rules:

1. `RULES` are tried in order, and the first that finds something decides. Each gives its reason.
2. Evidence of a rank itself comes before a comparison of ranks. A comparison comes before a conclusion from silence.
3. A hang is presumed only if the job's rhythm has declared one (`rhythm.py`). Without it, only faults that need no hang
   are found. A healthy job has no diagnosis.
4. A rank without evidence is blamed only if nothing that is known explains the fault. A rank that taskd has killed is
   never blamed.
5. The cost is linear in ranks, communicators and recorded collectives. No rule depends on the order of the ranks.
"""

from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Final

from taskd.core.diagnosis.account import culprits_text, finding, victims_text
from taskd.core.diagnosis.conditions import waits_by_stack
from taskd.core.diagnosis.evidence import Collective, Evidence
from taskd.core.diagnosis.failures import by_themselves, mismatched, perhaps_by_others, too_early
from taskd.core.diagnosis.findings import Diagnosis, Finding, Kind, names, ranked
from taskd.core.diagnosis.hangs import (
    cut_off,
    holding_up,
    in_circle,
    late_on_device,
    not_arriving,
    not_heard,
    outside,
    presumed,
    unknown,
    waits_on_device,
)
from taskd.core.diagnosis.jobview import Cut, Found, JobView, Rule
from taskd.core.diagnosis.proof import CERTAIN, prove
from taskd.core.diagnosis.rhythm import Hang
from taskd.wire.kinds import JobRank

_STACKS_TOLD: Final = 2
_FRAMES_TOLD: Final = 6
_OURS: Final = "/taskd/adaptors/"
"""Path of taskd's own frames. A shown stack ends before them: frames above the training function are of no use."""


def diagnose(
    evidence: Mapping[JobRank, Evidence],
    members: Collection[JobRank] | None = None,
    hang: Hang | None = None,
    cuts: Collection[Cut] = (),
) -> Diagnosis | None:
    """Return the diagnosis of a job; None if nothing is wrong, or if the evidence is not enough yet.

    Args:
        evidence: of each rank of which anything is known.
        members: ranks of the job's present world; by default, the ranks with evidence.
        hang: the hang that the job's rhythm has declared; None while the job makes progress.
        cuts: nodes that could not reach each other.

    """
    view = JobView(evidence, evidence.keys() if members is None else frozenset(members), hang, cuts)
    for rule in RULES:
        found = rule.find(view)
        if found is not None:
            return _diagnosis(view, rule, found)
    return None


def lost_with_node(ranks: Collection[JobRank], text: str) -> Diagnosis:
    """Return the diagnosis of ranks that can no longer be queried. `text` describes what happened to their node."""
    told = f"cannot be heard: {text}"
    facts = tuple(Finding(rank, Kind.SILENT, told) for rank in sorted(ranks))
    who = names(ranks)
    return Diagnosis(
        kind=Kind.SILENT,
        culprits=tuple(sorted(ranks)),
        victims=(),
        sentence=f"{who[0].upper()}{who[1:]} {told}.",
        facts=facts,
    )


def _diagnosis(view: JobView, rule: Rule, found: Found) -> Diagnosis:
    facts = ranked(found.facts)
    kind = found.kind or facts[0].kind
    proof = CERTAIN
    if view.hang is not None:
        proof, left = prove(view, found, kind)
        facts = ranked(left)
        kind = found.kind or facts[0].kind
    culprits = {fact.rank for fact in facts}
    waiting, failed = _victims(view, culprits) if rule.names_victims else ({}, [])
    sentences = [culprits_text(facts, view.evidence) or kind.value, victims_text(waiting, failed)]
    reasons = [*dict.fromkeys(found.reasons or (rule.reason,)), *([view.hang.reason] if view.hang else ())]
    told = ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences if sentence)
    stacks = "" if proof.proven else _stacks(view, culprits)
    certain = "" if not proof.why else f" Proven: {proof.why}." if proof.proven else f" Not proven: {proof.why}."
    return Diagnosis(
        kind=kind,
        culprits=tuple(sorted(culprits)),
        victims=tuple(sorted({*waiting, *failed})),
        sentence=f"{told}. Why: {'; '.join(reasons)}.{certain}{stacks}",
        facts=ranked([*facts, *_besides(view, kind)]),
        proven=proof.proven,
        proof=proof.why,
    )


def _stacks(view: JobView, culprits: Collection[JobRank]) -> str:
    """Return, for people, the stacks of culprits that may still be at work."""
    shown = [rank for rank in sorted(culprits)[:_STACKS_TOLD] if rank in view.evidence]
    stacks = ((rank, view.evidence[rank].frames.stack) for rank in shown)
    told = ((rank, list(takewhile(lambda frame: _OURS not in frame, stack))[:_FRAMES_TOLD]) for rank, stack in stacks)
    return "".join(f" Stack of rank {rank}: {', called by '.join(stack)}." for rank, stack in told if stack)


def _victims(view: JobView, culprits: Collection[JobRank]) -> tuple[dict[JobRank, Collective | None], list[JobRank]]:
    """Return the ranks that wait, each with its operation, and the ranks that have failed because of others."""
    waits = view.waits
    waiting: dict[JobRank, Collective | None] = {**waits.stuck, **waits.unsure, **waits.waiting}
    if view.hang is not None:
        for rank, known in view.evidence.items():
            is_waiting = waits_by_stack(known) or waits_on_device(known) or rank in view.behind_builders
            if is_waiting and not known.gone and rank not in view.ends:
                waiting.setdefault(rank, None)
    failed = [rank for rank, row in view.ends.items() if row.kind is not Kind.EXITED_EARLY]
    kept = {rank: call for rank, call in sorted(waiting.items()) if rank not in culprits}
    return kept, sorted(rank for rank in failed if rank not in culprits)


def _besides(view: JobView, told: Kind) -> list[Finding]:
    """Return findings beside the cause that deserve their own line: orphans, and numbers that were not finite."""
    return [
        finding(rank, kind, known)
        for rank, known in view.evidence.items()
        for kind, seen in (
            (Kind.ORPHANED, known.process is not None and bool(known.process.orphans)),
            (Kind.NON_FINITE, known.non_finite is not None),
        )
        if seen and kind is not told
    ]


def _not_finite(view: JobView) -> Found | None:
    seen = {rank: known.non_finite.step for rank, known in view.evidence.items() if known.non_finite is not None}
    first = min(seen.values(), default=0)
    ranks = [rank for rank, step in seen.items() if step == first]
    return Found([finding(rank, Kind.NON_FINITE, view.evidence[rank]) for rank in ranks]) if ranks else None


def _orphaned(view: JobView) -> Found | None:
    left = [rank for rank, known in view.evidence.items() if known.process is not None and known.process.orphans]
    return Found([finding(rank, Kind.ORPHANED, view.evidence[rank]) for rank in left]) if left else None


RULES: Final = (
    Rule(by_themselves, "it failed by itself"),
    Rule(mismatched, "of one collective, by communicator and number, all ranks must make the same call"),
    Rule(too_early, "a rank that has left cannot take part any more"),
    Rule(perhaps_by_others, "it was the first to end"),
    Rule(holding_up, "a rank that holds others up and waits for none is the cause"),
    Rule(late_on_device, "the devices of others wait in NCCL"),
    Rule(outside, "it takes no part while the others wait"),
    Rule(cut_off, "nodes cannot reach each other"),
    Rule(not_heard, "nothing that is known of the others explains it"),
    Rule(not_arriving, "the processes are well, and what they send does not arrive"),
    Rule(in_circle, "the ranks wait for each other, and the fewer have it in another order"),
    Rule(presumed, "no rank is seen to wait for it, and no progress can come from what it does"),
    Rule(unknown, "nothing that is known singles out a rank"),
    Rule(_not_finite, "it was the first to see it", names_victims=False),
    Rule(_orphaned, "its parent has ended", names_victims=False),
)
