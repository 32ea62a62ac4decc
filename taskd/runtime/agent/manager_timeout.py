"""Limit of a node's wait for the manager. After it torchrun's own behaviour takes over.

Rules:

1. In a job of several nodes the limit is `TIMES` the setting: torchrun could do no better, and a manager that starts
   anew takes the node back.
2. If all ranks of a node are done, or its manager is in its own process, the limit is `NEEDED_S`. It counts from the
   node's need of an order.
3. A node does not wait for a manager that refuses its first message. The limit is `NEEDED_S` for a manager that lacks
   the reports of some nodes, because a job that has never formed recovers nothing. A manager that takes a job over has
   its own limits for these reports.
4. Time in which this process did not run does not count.
"""

import time
from typing import Final

from taskd.config.agent import AgentConfig
from taskd.core.agent import Need
from taskd.runtime.agent.job_status import JobStatus
from taskd.runtime.agent.ports import Outlook

TIMES: Final = 10
NEEDED_S: Final = 2.0
_LOOK_S: Final = 0.5


class ManagerTimeout:
    """Time limit from the newest answer of a manager; before the first answer, from its own creation."""

    def __init__(self, config: AgentConfig, job: JobStatus) -> None:
        self._wait_s = config.manager_wait_s
        self._where = config.manager or config.nearby
        self._job = job
        self._most_s = max(_LOOK_S, config.heartbeat_s)
        self._looked_s = time.monotonic()
        self.answered_s = time.monotonic()
        """Time of the newest answer."""
        self._silent_s = self._needing_s = 0.0
        """Time without an answer, and time for which this node has needed an order."""
        self._needed = Need.NOTHING

    def renew(self) -> None:
        """Restart the time limit: a manager has answered, or is expected to from now on."""
        self._silent_s, self.answered_s = 0.0, time.monotonic()

    def look(self, need: Need, trouble: str | None, *, embedded: bool) -> str:
        """Return why the node stops waiting for the manager, or "". `embedded`: the manager is in this process."""
        now_s = time.monotonic()
        passed_s, self._looked_s = min(now_s - self._looked_s, self._most_s), now_s
        self._silent_s += passed_s
        self._needing_s = self._needing_s + passed_s if need is self._needed is not Need.NOTHING else 0.0
        self._needed = need
        if trouble and self._job.places is None:
            return trouble
        forming = self._job.outlook(0.0) is Outlook.FORMING and not self._job.has_formed
        if forming and self._needing_s > NEEDED_S:
            return f"not all {self._job.places} nodes of the job have come to the manager"
        waits_s = self._limit_s(need, embedded=embedded)
        if self._silent_s <= waits_s:
            return ""
        where = "in this process" if embedded else f"at {self._where}"
        return f"{trouble or f'no manager answers {where}'} for {waits_s:g} s"

    def _limit_s(self, need: Need, *, embedded: bool) -> float:
        soon_s = min(self._wait_s, NEEDED_S)
        if need is Need.RELEASE or (need is Need.RECOVERY and embedded):
            return soon_s if self._needing_s > soon_s else self._wait_s
        return self._wait_s * (TIMES if (self._job.places or 1) > 1 else 1)
