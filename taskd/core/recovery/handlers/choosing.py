"""From the strategy that was chosen to what is done first."""

from taskd.core.recovery.actions import Next, do
from taskd.core.recovery.events import Kept, Refused, Restarted, Undecided
from taskd.core.recovery.handlers.common import end
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import AwaitingQuorum, Choosing, Pausing, Restarting
from taskd.core.recovery.planning import meeting_of
from taskd.core.rendezvous import NOWHERE
from taskd.wire.messages import Order


def pause(_phase: Choosing, _event: Kept, _job: Job, now_s: float) -> Next:
    """Whoever lives stays: all of them pause."""
    return Pausing(now_s), (do(send, Order.PAUSE),)


def restart(_phase: Choosing, _event: Restarted, job: Job, now_s: float) -> Next:
    """All processes start anew; on several nodes they meet at a store of the manager's choice."""
    meeting = meeting_of(job.world) if job.policy.node_count > 1 else NOWHERE
    return Restarting(now_s, meeting), (do(send, Order.RUN, meeting=meeting),)


def wait(_phase: Choosing, _event: Undecided, _job: Job, now_s: float) -> Next:
    """Whoever lives pauses, until enough nodes are heard."""
    return AwaitingQuorum(now_s), (do(send, Order.PAUSE),)


def stop(_phase: Choosing, event: Refused, _job: Job, now_s: float) -> Next:
    """Nothing helps."""
    return end(now_s, event.reason)
