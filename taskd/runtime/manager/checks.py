"""Node checks of the manager: the clock of `core.nodecheck.scheduler`, and the log and journal of its findings.

Rules:

1. `core.nodecheck.scheduler` decides. Nothing here changes a diagnosis.
2. The log has one line for each round, in the words that people search for (`elapsed`). It has one line for each node
   or link that is not healthy.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping

import msgspec
from typing_extensions import assert_never

from taskd.core.nodecheck.diagnosis import NodeHealth
from taskd.core.nodecheck.scheduler import Checked, CheckScheduler, Order, RoundOver, Wanted
from taskd.core.policy import Policy
from taskd.core.recovery import Phase, Recovery
from taskd.runtime.manager.cluster import Cluster
from taskd.runtime.manager.journal import Journal
from taskd.wire.checks import CheckOrder, Inspect, Inspection, Own
from taskd.wire.messages import NodeStatus

logger = logging.getLogger(__name__)
MOST_INSPECTIONS = 16
"""Most operators with a request at the same time."""


class NodeChecks:
    """All checks of one manager. `number` distinguishes them from those of former managers."""

    def __init__(self, policy: Policy, number: int, journal: Journal, cluster: Cluster) -> None:
        self._scheduler = CheckScheduler(policy, number)
        self._journal = journal
        self._cluster = cluster
        self._inspections: dict[str, str] = {}
        """Result by the key of the operator's request; "" while it is not known."""

    def inspect(self, request: Inspect, job: Recovery) -> Inspection:
        """Check all nodes for an operator, and return the result so far."""
        if request.job_id != job.policy.job_id:
            other = f"found job {request.job_id!r}, expected {job.policy.job_id!r}; set TASKD_JOB_ID"
            return Inspection(key=request.key, refusal=other)
        if job.phase in (Phase.FORMING, Phase.STOPPED):
            early = f"the job is {job.phase.value}, expected its nodes to be there; try again when it trains"
            return Inspection(key=request.key, refusal=early)
        if request.key not in self._inspections:
            if not self._has_room():
                busy = f"{MOST_INSPECTIONS} others wait for the nodes to be checked; try again when that was done"
                return Inspection(key=request.key, refusal=busy)
            self._inspections[request.key] = ""
            self._scheduler.inspect()
        return Inspection(key=request.key, document=self._inspections[request.key])

    def _has_room(self) -> bool:
        """Return whether there is room for one more request. The oldest result gives way: it was sent many times."""
        told = [key for key, found in self._inspections.items() if found]
        if len(self._inspections) >= MOST_INSPECTIONS and told:
            del self._inspections[told[0]]
        return len(self._inspections) < MOST_INSPECTIONS

    def hear(self, status: NodeStatus) -> None:
        """Pass an agent's report to the scheduler."""
        self._scheduler.hear(status)

    def order_for(self, status: NodeStatus) -> Order | None:
        """Return the order to send to this node now, beside the directive; None if there is none."""
        order = self._scheduler.order_for(status)
        return msgspec.structs.replace(order, clock_s=time.time()) if isinstance(order, CheckOrder) else order

    def turn(self, job: Recovery) -> bool:
        """Advance the scheduler's time, and return whether there may be new orders."""
        if not self._scheduler.due or job.superseded or job.phase is Phase.STOPPED:
            return False
        if job.phase is Phase.FORMING and any(view.status.ledger.term for view in job.world.nodes.views()):
            return False  # an earlier manager's job: its state must be learned first
        before = self._scheduler.number
        actions = self._scheduler.tick(job.world.nodes, forming=job.phase is Phase.FORMING, now_s=time.monotonic())
        for action in actions:
            match action:
                case RoundOver():
                    elapsed = _numbers(action.elapsed_s)
                    shown = {int(name) if name.isdigit() else name: seconds for name, seconds in elapsed.items()}
                    logger.info("Round %d: The node elapsed time are %s", action.number, shown)
                    self._journal.write("node check round", round=action.number, elapsed_s=elapsed)
                case Checked():
                    self._tell(action)
                case Wanted():
                    self._journal.write("node wanted", node_rank=action.node_rank, reason=action.reason)
                    self._cluster.request(action.node_rank, action.reason)
                case _:
                    assert_never(action)
        return bool(actions) or self._scheduler.number != before

    def _tell(self, checked: Checked) -> None:
        diagnosis = checked.diagnosis
        unhealthy = {name: found for name, found in diagnosis.nodes.items() if found.health is not NodeHealth.HEALTHY}
        counts = Counter(found.health for found in diagnosis.nodes.values())
        summary = ", ".join(f"{counts[health]} {health.value}" for health in NodeHealth if counts[health])
        rounds = f"{checked.rounds} round{'s' if checked.rounds != 1 else ''}"
        level = logging.WARNING if unhealthy or diagnosis.links else logging.INFO
        logger.log(level, "node check: %s (%s, %.1f s)", summary, rounds, checked.lasted_s)
        for name, found in unhealthy.items():
            logger.warning("%s is %s: %s", name, found.health.value, found.text)
        for link in diagnosis.links:
            logger.warning("the link of %s and %s is %s: %s", *link.edge, link.health.value, link.text)
        for note in diagnosis.notes:
            logger.warning("node check: %s", note)
        document = _document(checked)
        self._journal.write("node check", **document)
        if checked.inspection:
            text = json.dumps(document)
            self._inspections = {key: known or text for key, known in self._inspections.items()}


def _as_fields(own: Own) -> dict[str, object]:
    return {name: getattr(own, name) for name in own.__struct_fields__}


def _document(checked: Checked) -> dict[str, object]:
    diagnosis, own = checked.diagnosis, checked.own
    return {
        "rounds": checked.rounds,
        "lasted_s": round(checked.lasted_s, 3),
        "inspection": checked.inspection,
        "nodes": {
            name: {
                "health": found.health.value,
                "text": found.text,
                "slow": [what.value for what in found.what],
                "own": _as_fields(own[name]) if name in own else None,
            }
            for name, found in diagnosis.nodes.items()
        },
        "links": [{"nodes": link.edge, "health": link.health.value, "text": link.text} for link in diagnosis.links],
        "notes": diagnosis.notes,
        "leave": {leave.node: leave.words for leave in checked.leaves},
    }


def _numbers(elapsed_s: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in sorted(elapsed_s.items())}
