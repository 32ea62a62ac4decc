"""When a node stops waiting for the manager, so that torchrun's own behaviour takes over.

Rules:

1. In a job of several nodes it waits `TIMES` as long as the setting says: torchrun could do no better, and a manager
   that starts anew takes the node back.
2. A node whose ranks are all done, or that has a manager in its own process, waits for `NEEDED_S` at most, from when it
   needs an order.
3. A manager that refuses this node's very first words is not waited for. Nor is one that has not heard of all nodes,
   for longer than `NEEDED_S` from when this node needs an order: a job that has never formed recovers nothing. A
   manager that takes a job over has time to hear of its nodes: it has its own limits.
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
    """Counts from the newest answer of a manager; before the first, from its own creation."""

    def __init__(self, config: AgentConfig, job: JobStatus) -> None:
        self._wait_s = config.manager_wait_s
        self._where = config.manager or config.nearby
        self._job = job
        self._most_s = max(_LOOK_S, config.heartbeat_s)
        self._looked_s = time.monotonic()
        self.answered_s = time.monotonic()
        """When the newest answer came."""
        self._silent_s = self._needing_s = 0.0
        """For how long nobody has answered, and this node has needed an order."""
        self._needed = Need.NOTHING

    def renew(self) -> None:
        """A manager has answered, or is expected to from now on."""
        self._silent_s, self.answered_s = 0.0, time.monotonic()

    def look(self, need: Need, trouble: str | None, *, embedded: bool) -> str:
        """Return why the manager, perhaps one in this process, is not waited for any longer, or ""."""
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
