"""Collectives between simulated processes: a meeting is over when all of its members have come.

A group is the processes of one generation. When one of them dies or breaks its collectives, the others leave theirs
with an error a little later, unless they are deaf to it. When a meeting is over, some members may already have gone on
while others still fail.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from taskd.wire.kinds import JobRank
from tests.sim.clock import Clock

TIMEOUT_S = 60.0
"""Time that a process waits in a collective with a lost peer, if it does not notice the loss."""


class CollectiveError(Exception):
    """Failure of a collective."""


class TwoProcessesError(Exception):
    """Two processes of one rank in one world."""


class Member(Protocol):
    """Process as its group refers to it."""

    name: str
    rank: JobRank
    machine: int

    def resume(self, ticket: "Ticket", result: Any) -> None: ...
    def fail(self, ticket: "Ticket", error: Exception) -> None: ...


@dataclass(slots=True, eq=False)
class Ticket:
    """Presence of one process in one meeting."""

    member: Member
    payload: Any
    deaf: bool


@dataclass(slots=True)
class Group:
    """Processes of one generation."""

    generation: int
    key: object = None
    meetings: dict[object, dict[int, Ticket]] = field(default_factory=dict)
    present: dict[Member, Ticket] = field(default_factory=dict)
    broken: bool = False


class Fabric:
    """All groups of a job, past and present."""

    def __init__(self, clock: Clock, rng: Random, deaf: float, connected: Callable[[int, int], bool]) -> None:
        self._clock = clock
        self._rng = rng
        self._deaf = deaf
        self._connected = connected
        self._groups: dict[object, Group] = {}

    def group(self, generation: int, key: object = None) -> Group:
        """Return the group of a generation. With a `key`, only processes that know the key share it."""
        return self._groups.setdefault((generation, key), Group(generation, key))

    def arrive(
        self,
        group: Group,
        key: object,
        member: Member,
        among: Iterable[int],
        payload: Any,
        check: Callable[[dict[int, Any]], None],
    ) -> Ticket:
        """Join a meeting of the ranks `among`. With the last member, `check` receives the payloads of all."""
        ticket = Ticket(member, payload, self._rng.random() < self._deaf)
        group.present[member] = ticket
        if group.broken:
            self._later_fail(group, ticket)
            return ticket
        meeting = group.meetings.setdefault(key, {})
        there = meeting.get(member.rank)
        if there is not None and there.member is not member:
            raise TwoProcessesError(f"{there.member.name} and {member.name} meet in generation {group.generation}")
        meeting[member.rank] = ticket
        if any(not self._connected(member.machine, other.machine) for other in group.present):
            self._cut(group)
        elif set(among) <= meeting.keys():
            payloads = {rank: guest.payload for rank, guest in meeting.items()}
            check(payloads)
            del group.meetings[key]
            for guest in meeting.values():
                self._clock.after(0.0005 + 0.002 * self._rng.random(), self._give, group, guest, payloads)
        return ticket

    def _cut(self, group: Group) -> None:
        """Break the group, because some members cannot reach each other: sooner or later all notice."""
        group.broken = True
        group.meetings.clear()
        for ticket in group.present.values():
            self._clock.after(0.5 + 10.0 * self._rng.random(), self._fail, group, ticket)

    def leave(self, group: Group, member: Member) -> None:
        """Remove a process that is gone or has broken its collectives: its peers notice."""
        group.present.pop(member, None)
        if group.broken:
            return
        group.broken = True
        group.meetings.clear()
        for ticket in group.present.values():
            self._later_fail(group, ticket)

    def expire(self, group: Group, ticket: Ticket) -> None:
        """End the member's wait, because its own timeout has passed."""
        if group.present.get(ticket.member) is ticket:
            del group.present[ticket.member]
            ticket.member.fail(ticket, CollectiveError("timed out"))
            self.leave(group, ticket.member)

    def _later_fail(self, group: Group, ticket: Ticket) -> None:
        if not ticket.deaf:
            self._clock.after(0.001 + 0.02 * self._rng.random() ** 3, self._fail, group, ticket)
        else:
            self._clock.after(TIMEOUT_S, self._fail, group, ticket)

    def _give(self, group: Group, ticket: Ticket, payloads: dict[int, Any]) -> None:
        if group.present.get(ticket.member) is ticket:
            del group.present[ticket.member]
            ticket.member.resume(ticket, payloads)

    def _fail(self, group: Group, ticket: Ticket) -> None:
        if group.present.get(ticket.member) is ticket:
            del group.present[ticket.member]
            ticket.member.fail(ticket, CollectiveError("connection reset by peer"))
