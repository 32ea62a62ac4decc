"""What torchrun's main thread learns of the manager by the agent's thread: is there a job, how large, has it ended."""

import threading
import time
from typing import Final

from taskd.runtime.agent.ports import Outlook
from taskd.wire.messages import Directive, Order

_PRESUMED_S: Final = 2.0
"""For a manager of which nobody has said that there is one."""


class Prospect:
    """Written by the agent's thread, awaited by torchrun's. `presumed`: there may well be no manager."""

    def __init__(self, manager_wait_s: float, *, presumed: bool = False) -> None:
        wait_s = min(manager_wait_s, _PRESUMED_S) if presumed else manager_wait_s
        self._until_s = time.monotonic() + wait_s
        self._outlook = Outlook.UNKNOWN
        self._changed = threading.Condition()
        self.places: int | None = None
        """Places of the job; None while no manager has answered."""
        self._ended = False
        self._given_up = False
        self._checked = False
        self.dismissed = ""
        """Why this node is to leave the job; empty if it is not."""

    def clear(self) -> None:
        """This node was checked, and may train."""
        with self._changed:
            self._checked = True
            self._changed.notify_all()

    def dismiss(self, reason: str) -> None:
        """This node was checked, and is to leave."""
        with self._changed:
            self.dismissed = reason
            self._changed.notify_all()

    def await_check(self) -> str:
        """Wait until this node was checked, nobody leads it, or the job has ended: why it must leave, or nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._checked or self.dismissed or self._given_up or self._ended)
            return self.dismissed

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
