"""Rows for the detector, from single ranks' reports on their newest steps: all ranks over the same steps.

Rules:

1. A rank's report is a span: some successive steps that end with `step`. A span that is received again changes nothing,
   and a lost one is a gap.
2. A row ends at the first step by which each rank has ended a span, and waits until all have passed it. It takes all
   spans that end by then. Ranks whose spans end at the same steps are compared exactly, others to within a span.
3. Unused spans are bounded: if a rank reports while others do not, only its newest `ROOM` spans are kept.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from taskd.core.stragglers.detector import Step
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan

ROOM: Final = 64


class Rows:
    """Buffer that receives spans as they come, and returns rows of all ranks."""

    def __init__(self, ranks: Iterable[JobRank]) -> None:
        self._spans: dict[JobRank, deque[RankSpan]] = {rank: deque(maxlen=ROOM) for rank in ranks}
        self._newest = dict.fromkeys(self._spans, -1)

    def hear(self, span: RankSpan) -> None:
        """Record a rank's span. A span of a rank that is not of this world is ignored."""
        if span.rank in self._spans and span.step > self._newest[span.rank] and span.steps > 0:
            self._newest[span.rank] = span.step
            self._spans[span.rank].append(span)

    def take(self, *, longest: bool = False) -> list[Step] | None:
        """Remove and return the next row, or all complete steps as one row if `longest`; None until a row is whole."""
        if not self._spans or not all(self._spans.values()):
            return None
        until = max(spans[0].step for spans in self._spans.values())
        passed = min(self._newest.values())
        if until > passed:
            return None
        until = passed if longest else until
        row = []
        for spans in self._spans.values():
            used = []
            while spans and spans[0].step <= until:
                used.append(spans.popleft())
            row.append(_mean(used, until))
        return row


def _mean(spans: list[RankSpan], until: int) -> Step:
    steps = sum(span.steps for span in spans)

    def mean(field: str) -> float:
        total: float = sum(getattr(span, field) * span.steps for span in spans)
        return total / steps

    works = mean("work") if all(span.work > 0 for span in spans) else 0.0
    return Step(spans[0].rank, until, mean("own_s"), mean("waited_s"), mean("data_s"), works, steps)
