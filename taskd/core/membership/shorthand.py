"""What an agent and its manager need not say again: without it every heartbeat would carry the whole world both ways.

Rules:

1. An agent names the newest directive that it was sent (`NodeStatus.heard`). The manager that finds it to be its newest
   answers `Heard` in place of the directive, and for the agent that is as if it had been sent again.
2. The ledger is the manager's own writing: an agent gives the whole of it only to another manager. Of whom it speaks to
   it knows by the last directive. A new manager that gets a shortened one takes in nothing of that report, and answers:
   the next report has the whole.
"""

from dataclasses import dataclass

from taskd.wire.messages import Directive, Heard, Ledger, NodeStatus


@dataclass(slots=True)
class Shorthand:
    """An agent's side, for one connection."""

    newest: Directive | None = None

    def hear(self, message: Directive | Heard) -> Directive | None:
        """The directive that is meant; None if it is none that was sent (the manager will send it)."""
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
        """Whether the manager that speaks has written the ledger of the directive that is obeyed."""
        return self.newest is None or obeyed is None or self.newest.ledger.term == obeyed.ledger.term

    def ledger(self, obeyed: Directive | None) -> Ledger:
        """What to give back of that ledger."""
        ledger = obeyed.ledger if obeyed is not None else Ledger()
        return Ledger(term=ledger.term) if self.knows(obeyed) else ledger


def answer(status: NodeStatus, directive: Directive) -> Directive | Heard:
    """The manager's answer to a report that has changed nothing."""
    return Heard(sequence=directive.sequence) if status.heard == directive.sequence else directive


def is_short(status: NodeStatus, term: int) -> bool:
    """Whether a report lacks what the manager of this term has to know of a former one's world."""
    return status.ledger.term not in (0, term) and not status.ledger.places
