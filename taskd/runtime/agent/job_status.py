"""What torchrun's main thread learns of the job from the agent's thread: its phase, its size, its end."""

import threading
import time
from typing import Final

from taskd.runtime.agent.ports import Outlook
from taskd.wire.messages import Directive, Order

_PRESUMED_S: Final = 2.0
"""How long to wait for a manager that no setting names."""


class JobStatus:
    """Written by the agent's thread, read by torchrun's. `presumed`: no setting names a manager, there may be none."""

    def __init__(self, manager_wait_s: float, *, presumed: bool = False) -> None:
        wait_s = min(manager_wait_s, _PRESUMED_S) if presumed else manager_wait_s
        self._until_s = time.monotonic() + wait_s
        self._outlook = Outlook.UNKNOWN
        self._changed = threading.Condition()
        self.places: int | None = None
        """Number of places of the job; None until a manager answers."""
        self.runs = False
        """The job trains, and the manager has nothing in hand."""
        self.has_formed = False
        """A manager has led the job. One that takes it over may form it anew."""
        self._ended = False
        self._given_up = False
        self._checked = False
        self.dismissed = ""
        """Why this node has to leave the job; empty if it has not."""

    def clear(self) -> None:
        """The node check is over: this node may train."""
        with self._changed:
            self._checked = True
            self._changed.notify_all()

    def dismiss(self, reason: str) -> None:
        """The node check is over: this node has to leave."""
        with self._changed:
            self.dismissed = reason
            self._changed.notify_all()

    def await_check(self) -> str:
        """Wait for the node check, the end of the job, or that no manager leads: why this node has to leave, or ""."""
        with self._changed:
            self._changed.wait_for(lambda: self._checked or self.dismissed or self._given_up or self._ended)
            return self.dismissed

    def learn(self, directive: Directive) -> None:
        """Take in the manager's directive."""
        with self._changed:
            self.places, self.runs = directive.node_count, directive.order is Order.RUN
            self._given_up = False
            self._outlook = Outlook.FORMING if directive.order is Order.FORM else Outlook.LIVING
            self.has_formed = self.has_formed or self._outlook is Outlook.LIVING
            self._ended = self._ended or directive.order is Order.STOP
            self._changed.notify_all()

    def give_up(self) -> None:
        """The manager does not lead this node: wait for it no longer."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def outlook(self, timeout_s: float | None) -> Outlook:
        """What this node finds, after at most `timeout_s`; with None, after the whole time that the manager has."""
        if timeout_s is None:
            timeout_s = max(0.0, self._until_s - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._outlook is not Outlook.UNKNOWN or self._given_up, timeout_s)
            return self._outlook

    def await_end(self, timeout_s: float) -> None:
        """Wait until the job has ended, or no manager leads this node."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._given_up, timeout_s)
