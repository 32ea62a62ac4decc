"""Status of the job, passed from the agent's thread to torchrun's main thread: its phase, its size, its end."""

import threading
import time
from typing import Final

from taskd.runtime.agent.ports import Outlook
from taskd.wire.messages import Directive, Order

_PRESUMED_S: Final = 2.0
"""Wait for a manager that no setting names."""


class JobStatus:
    """Status that the agent's thread writes and torchrun's reads. `presumed`: no setting names a manager."""

    def __init__(self, manager_wait_s: float, *, presumed: bool = False) -> None:
        wait_s = min(manager_wait_s, _PRESUMED_S) if presumed else manager_wait_s
        self._until_s = time.monotonic() + wait_s
        self._outlook = Outlook.UNKNOWN
        self._changed = threading.Condition()
        self.places: int | None = None
        """Number of places of the job; None until a manager answers."""
        self.runs = False
        """True while the job trains, and the manager has nothing in hand."""
        self.has_formed = False
        """True once a manager has led the job. A manager that takes it over may form it anew."""
        self._ended = False
        self._given_up = False
        self._checked = False
        self.dismissed = ""
        """Reason why this node has to leave the job; empty if it may stay."""

    def clear(self) -> None:
        """Record that the node check is over and this node may train."""
        with self._changed:
            self._checked = True
            self._changed.notify_all()

    def dismiss(self, reason: str) -> None:
        """Record that the node check is over and this node has to leave."""
        with self._changed:
            self.dismissed = reason
            self._changed.notify_all()

    def await_check(self) -> str:
        """Wait for the node check, the job's end or the manager's loss; return why this node must leave, or ""."""
        with self._changed:
            self._changed.wait_for(lambda: self._checked or self.dismissed or self._given_up or self._ended)
            return self.dismissed

    def learn(self, directive: Directive) -> None:
        """Record the manager's directive."""
        with self._changed:
            self.places, self.runs = directive.node_count, directive.order is Order.RUN
            self._given_up = False
            self._outlook = Outlook.FORMING if directive.order is Order.FORM else Outlook.LIVING
            self.has_formed = self.has_formed or self._outlook is Outlook.LIVING
            self._ended = self._ended or directive.order is Order.STOP
            self._changed.notify_all()

    def give_up(self) -> None:
        """Record that no manager leads this node: all waits end."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def outlook(self, timeout_s: float | None) -> Outlook:
        """Return the job's phase after at most `timeout_s`; with None, after the manager's whole time limit."""
        if timeout_s is None:
            timeout_s = max(0.0, self._until_s - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._outlook is not Outlook.UNKNOWN or self._given_up, timeout_s)
            return self._outlook

    def await_end(self, timeout_s: float) -> None:
        """Wait until the job has ended, or no manager leads this node."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._given_up, timeout_s)
