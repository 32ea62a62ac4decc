"""The view of a job at one moment that the rules of the diagnosis receive, and their result."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from taskd.core.diagnosis.account import finding
from taskd.core.diagnosis.conditions import Symptom, condition_of_end, condition_of_standstill
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Finding, Kind, precedence
from taskd.core.diagnosis.rhythm import Hang
from taskd.core.diagnosis.waits import Waits, find_waits
from taskd.wire.kinds import JobRank, NodeRank


@dataclass(frozen=True, slots=True)
class Cut:
    """A node that could not reach another one. The manager is node -1: a node that it cannot reach breaks a tie."""

    source: NodeRank
    target: NodeRank


@dataclass(frozen=True)
class JobView:
    """Evidence of a job. `members` are the ranks of its world; some may be without evidence."""

    evidence: Mapping[JobRank, Evidence]
    members: Collection[JobRank]
    hang: Hang | None
    cuts: Collection[Cut]

    @cached_property
    def ends(self) -> dict[JobRank, Symptom]:
        """Ranks that have failed, or have ended with status 0, each with its symptom."""
        rows = ((rank, condition_of_end(known)) for rank, known in self.evidence.items())
        return {rank: row for rank, row in rows if row is not None}

    @cached_property
    def standing_still(self) -> dict[JobRank, Symptom]:
        """Ranks whose whole process stands still, each with its symptom."""
        rows = ((rank, condition_of_standstill(known)) for rank, known in self.evidence.items() if not known.gone)
        return {rank: row for rank, row in rows if row is not None and rank not in self.ends}

    @cached_property
    def waits(self) -> Waits:
        """Waits between the ranks: which rank waits for which."""
        gone = (rank for rank, known in self.evidence.items() if known.gone)
        return find_waits(self.evidence, self.members, {*gone, *self.ends, *self.standing_still})

    @cached_property
    def behind_builders(self) -> set[JobRank]:
        """Ranks that wait for a lock file of another living rank of this job: the cause lies with that rank."""
        living = {rank: known for rank, known in self.evidence.items() if not known.gone}
        ranks = {(known.node, known.process.pid): rank for rank, known in living.items() if known.process is not None}
        waiting = {
            rank: (known.node, file.pid)
            for rank, known in living.items()
            if (file := known.blockers.lock_file) is not None
        }
        return {rank for rank, owner in waiting.items() if ranks.get(owner, rank) != rank}

    @property
    def held_up(self) -> set[JobRank]:
        """Ranks that wait for another one: in a collective, or for a file that it builds."""
        return self.waits.held_up | self.behind_builders

    def ended(self, *kinds: Kind) -> list[JobRank]:
        """Return the ranks that have failed in one of these ways."""
        return [rank for rank, row in self.ends.items() if row.kind in kinds]

    @cached_property
    def disturbed(self) -> bool:
        """True if something is wrong, perhaps without a rank that failed by itself.

        That is a hang, or an error that blames a connection.
        """
        return self.hang is not None or bool(self.ended(Kind.COLLATERAL))

    @cached_property
    def silent(self) -> list[JobRank]:
        """Ranks without evidence."""
        return [rank for rank in self.members if rank not in self.evidence]


@dataclass(slots=True)
class Found:
    """Result of a rule: one finding for each culprit, and the reasons."""

    facts: list[Finding]
    kind: Kind | None = None
    """Kind of a diagnosis without a culprit."""
    reasons: Collection[str] = field(default_factory=tuple)
    doubt: str = ""
    """Reason why it is not certain, though its kind usually is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to find a fault. With `names_victims`, all ranks that wait are its victims."""

    find: Callable[[JobView], Found | None]
    reason: str
    names_victims: bool = True


def blame(view: JobView, ranks: Iterable[JobRank], rows: Mapping[JobRank, Symptom]) -> Found | None:
    """Blame each of these ranks for its symptom; None if there are none."""
    blamed = sorted(ranks, key=lambda rank: precedence(rows[rank].kind))
    late = view.waits.late
    facts = [finding(rank, rows[rank].kind, view.evidence[rank], late.get(rank)) for rank in blamed]
    return Found(facts, reasons=[rows[rank].reason for rank in blamed]) if facts else None
