"""One line in a torchrun's log for each recovery of a job with a manager elsewhere. That manager has the whole record.

Rules:

1. A recovery ends with the first order to train in a world of another generation than before.
2. The line describes this node: the time in which its ranks did not train, and the ranks with new processes.
"""

import logging
from collections.abc import Iterable

from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, Order, RankStatus

logger = logging.getLogger(__name__)


class RecoveryLog:
    """Log of the recoveries in the manager's orders; only the newest order counts."""

    def __init__(self) -> None:
        self._newest = (0, 0, 0)
        self._generation: int | None = None
        self._since_s: float | None = None
        self._incarnations: dict[JobRank, int] = {}

    def follow(self, directive: Directive, place: NodeRank | None, ranks: Iterable[RankStatus], now_s: float) -> None:
        """Record an order that arrives while this node holds this place and these ranks."""
        newest = (directive.ledger.term, directive.generation, directive.sequence)
        if newest <= self._newest:
            return
        self._newest = newest
        if directive.order in (Order.PAUSE, Order.JOIN):
            self._since_s = now_s if self._since_s is None else self._since_s
        elif directive.order is Order.RUN:
            self._tell(directive, place, {status.rank: status.incarnation for status in ranks}, now_s)

    def _tell(
        self, directive: Directive, place: NodeRank | None, incarnations: dict[JobRank, int], now_s: float
    ) -> None:
        before, self._generation = self._generation, directive.generation
        since_s, self._since_s = self._since_s, None
        former, self._incarnations = self._incarnations, incarnations
        if before == directive.generation:
            return
        if since_s is not None:
            new = [rank for rank in sorted(incarnations) if former.get(rank) != incarnations[rank]]
            kept = [rank for rank in sorted(incarnations) if rank not in new]
            logger.warning(
                "the job trains again: generation=%d node=%s paused_s=%.1f new_ranks=%s kept_ranks=%s; the manager's "
                "log has the cause",
                *(directive.generation, place, now_s - since_s, _list(new), _list(kept)),
            )
        elif before is not None:
            logger.warning(
                "all processes of the job start anew: generation=%d node=%s; the manager's log has the cause",
                *(directive.generation, place),
            )


def _list(ranks: list[JobRank]) -> str:
    return ",".join(map(str, ranks)) or "none"
