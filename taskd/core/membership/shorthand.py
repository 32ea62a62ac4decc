"""Parts of messages that an agent and its manager need not repeat.

Without this, every heartbeat would carry the whole world both ways.

Rules:

1. An agent names the newest directive that it was sent (`NodeStatus.heard`). If that is the manager's newest, the
   manager answers `Heard` in place of the directive. For the agent, this is as if the directive had been sent again.
2. The manager itself has written the ledger, so an agent sends the whole of it only to another manager. The last
   directive shows the agent which manager it is connected to. A new manager that receives a shortened ledger ignores
   that report and answers. The next report has the whole ledger.
"""

from dataclasses import dataclass

from taskd.wire.messages import Directive, Heard, Ledger, NodeStatus


@dataclass(slots=True)
class Shorthand:
    """Agent's side of the shorthand, for one connection."""

    newest: Directive | None = None

    def hear(self, message: Directive | Heard) -> Directive | None:
        """Return the directive that a message means; None if it was never sent (the manager will send it)."""
        if isinstance(message, Directive):
            if message.sequence > self.heard:  # also that of a new manager
                self.newest = message
            return message
        return self.newest if self.heard == message.sequence else None

    @property
    def heard(self) -> int:
        """Sequence number of the newest directive that was sent; 0 if none was."""
        return self.newest.sequence if self.newest is not None else 0

    def knows(self, obeyed: Directive | None) -> bool:
        """Return whether the connected manager has written the ledger of the directive that is obeyed."""
        return self.newest is None or obeyed is None or self.newest.ledger.term == obeyed.ledger.term

    def ledger(self, obeyed: Directive | None) -> Ledger:
        """Return the ledger to send back, shortened for the manager that wrote it."""
        ledger = obeyed.ledger if obeyed is not None else Ledger()
        return Ledger(term=ledger.term) if self.knows(obeyed) else ledger


def answer(status: NodeStatus, directive: Directive) -> Directive | Heard:
    """Return the manager's answer to a report that has changed nothing."""
    return Heard(sequence=directive.sequence) if status.heard == directive.sequence else directive


def is_short(status: NodeStatus, term: int) -> bool:
    """Return whether a report lacks the facts of a former manager's world that the manager of this term must know."""
    return status.ledger.term not in (0, term) and not status.ledger.places
