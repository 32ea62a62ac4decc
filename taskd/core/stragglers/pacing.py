"""Pace of a job: from the spans that ranks report to rows, stragglers, and the reports on them.

Rules:

1. Each world is followed from its own beginning: knowledge of another one does not hold in it.
2. Where a node has fewer cores than ranks, the scheduler makes one rank or another slower than the rest for minutes.
   There, only a rank that is far slower is reported: `CROWDED_EXCESS`.
3. A slowness that costs the job less than `LEAST_SHARE` of a step is not reported.
4. A row of 16,384 ranks costs 0.2 s. The more ranks there are, the longer a row lasts, so rows take no more than 3 % of
   the manager's time.
"""

from collections.abc import Iterable
from typing import Final

from taskd.core.diagnosis.account import finding
from taskd.core.diagnosis.evidence import Evidence, Pace
from taskd.core.diagnosis.findings import Diagnosis, Kind
from taskd.core.stragglers.detector import Layout, Stragglers
from taskd.core.stragglers.diagnosis import SlowCause, Straggler
from taskd.core.stragglers.rows import Rows
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan

CROWDED_EXCESS: Final = 0.4
"""In even jobs of four ranks on two cores, the worst rank mostly needed 1.25 times as long as the others. One that
computes twice as much was measured to need 1.5 to 1.9 times as long.
"""
LEAST_SHARE: Final = 0.05
EVERY_S: Final = 1.0
_RANKS_A_SECOND: Final = 2048
_KINDS: Final = {
    SlowCause.COMPUTE: Kind.SLOW,
    SlowCause.NODE: Kind.SLOW_NODE,
    SlowCause.DATA: Kind.SLOW_LOADING,
    SlowCause.LINK: Kind.SLOW_NETWORK,
    SlowCause.IMBALANCE: Kind.UNEVEN,
    SlowCause.WORKLOAD: Kind.UNEVEN,
}


class Pacing:
    """Pace of one world."""

    def __init__(self, layout: Layout, *, crowded: bool) -> None:
        """Follow the ranks of a layout. `crowded`: somewhere ranks share cores."""
        self.layout = layout
        self._crowded = crowded
        self._rows = Rows(layout.nodes)
        self._detector = Stragglers(layout)
        self.every_s = max(EVERY_S, len(layout.nodes) / _RANKS_A_SECOND)
        """Interval, in seconds, at which it is worth calling `found`."""

    def hear(self, spans: Iterable[RankSpan]) -> None:
        """Receive the ranks' reports on themselves."""
        for span in spans:
            self._rows.hear(span)

    def found(self) -> list[Straggler]:
        """Return the stragglers that can be reported now and have not been."""
        found: list[Straggler] = []
        while (row := self._rows.take(longest=self.every_s > EVERY_S)) is not None:
            found += self._detector.note(row)
        return [one for one in found if self._is_worth_telling(one)]

    def _is_worth_telling(self, one: Straggler) -> bool:
        if not one.blamed:
            return not self._crowded
        enough = one.excess_s >= LEAST_SHARE * self._detector.step_s
        return enough and (not self._crowded or one.excess >= CROWDED_EXCESS)

    def lasts(self, one: Straggler) -> bool:
        """Return whether a straggler still is one."""
        return self._detector.lasts(one.ranks)

    @property
    def knows_work(self) -> bool:
        """True if the ranks have reported how much they were given to do."""
        return self._detector.knows_work

    def diagnosis(self, one: Straggler) -> tuple[Diagnosis, dict[JobRank, Evidence]]:
        """Return the diagnosis for the job's log, and each rank's recent pace."""
        evidence = {
            rank: Evidence(self.layout.nodes[rank], pace=Pace(one.steps, own + waited + data, waited, data))
            for rank, (own, waited, data) in self._detector.times().items()
        }
        kind = _KINDS[one.cause]
        facts = tuple(finding(rank, kind, evidence[rank]) for rank in one.ranks)
        return Diagnosis(kind, one.blamed, (), one.sentence + self._where(one), facts), evidence

    def _where(self, one: Straggler) -> str:
        places = sorted({self.layout.nodes[rank] for rank in one.blamed})
        if not places or len(set(self.layout.nodes.values())) < 2:
            return ""
        return f" {'They are' if len(one.ranks) > 1 else 'It is'} on node {', '.join(map(str, places))}."
