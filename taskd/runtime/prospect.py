"""What torchrun's main thread learns of the manager by the agent's thread: is there a job, how large, has it ended."""

import threading
import time

from taskd.runtime.ports import Outlook
from taskd.wire.messages import Directive, Order


class Prospect:
    """Written by the agent's thread, awaited by torchrun's."""

    def __init__(self, manager_wait_s: float) -> None:
        self._until_s = time.monotonic() + manager_wait_s
        self._outlook = Outlook.UNKNOWN
        self._changed = threading.Condition()
        self.places: int | None = None
        """Places of the job; None while no manager has answered."""
        self._ended = False
        self._given_up = False

    def learn(self, directive: Directive) -> None:
        """The manager has said this."""
        with self._changed:
            self.places = directive.node_count
            self._outlook = Outlook.FORMING if directive.order is Order.FORM else Outlook.LIVING
            self._ended = self._ended or directive.order is Order.STOP
            self._changed.notify_all()

    def give_up(self) -> None:
        """The manager does not lead this node: nobody waits for its word."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def outlook(self, timeout_s: float | None) -> Outlook:
        """What this node finds; an answer is awaited so long, with None until the manager's time is over."""
        if timeout_s is None:
            timeout_s = max(0.0, self._until_s - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._outlook is not Outlook.UNKNOWN, timeout_s)
            return self._outlook

    def await_end(self, timeout_s: float) -> None:
        """Wait until the job has ended, or nobody leads it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._given_up, timeout_s)
