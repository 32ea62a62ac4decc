"""Network between machines: it drops, delays, doubles and reorders messages, and may be cut in two."""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.sim.clock import Clock
from tests.sim.scenario import Weather

LONGEST_SILENCE_S = 6.0
"""Limit of a loss of messages; shorter than the silence after which a node counts as dead."""


class Place(Protocol):
    """Sender or receiver of messages."""

    name: str
    machine: int


class Network:
    """Carrier of messages between the managers and the agents."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather) -> None:
        self._clock = clock
        self._rng = rng
        self._weather = weather
        self._burst_until_s: dict[str, float] = {}
        self._passed_s: dict[tuple[str, str, bool], float] = {}
        self._cut_off: frozenset[int] = frozenset()
        self._mute_until_s: dict[int, float] = {}

    def burst(self, name: str, length_s: float) -> None:
        """Lose everything to and from this agent for a while."""
        self._burst_until_s[name] = self._clock.now_s + length_s

    def mute(self, machine: int, length_s: float) -> None:
        """Lose all messages from the managers of this machine for a while. Messages to them arrive."""
        self._mute_until_s[machine] = self._clock.now_s + length_s

    def cut(self, machines: frozenset[int], length_s: float) -> bool:
        """Separate these machines from all others for a while. Return False if the network is cut already."""
        if self._cut_off:
            return False
        self._cut_off = machines
        self._clock.after(length_s, self._heal)
        return True

    def _heal(self) -> None:
        self._clock.note("network", "heals")
        self._cut_off = frozenset()

    def connected(self, one: int, other: int) -> bool:
        """Return whether two machines can reach each other."""
        return (one in self._cut_off) == (other in self._cut_off)

    def send(self, agent: Place, manager: Place, up: bool, deliver: Callable[[Any], object], message: Any) -> None:
        """Deliver `message` later, once or twice, or never."""
        if not self.connected(agent.machine, manager.machine):
            return
        weather, random, now_s = self._weather, self._rng.random, self._clock.now_s
        way = (agent.name, manager.name, up)
        overdue = now_s - self._passed_s.setdefault(way, now_s)
        bursting = now_s < self._burst_until_s.get(agent.name, 0.0)
        bursting = bursting or (not up and now_s < self._mute_until_s.get(manager.machine, 0.0))
        if overdue < LONGEST_SILENCE_S and (bursting or random() < weather.drop):
            return
        self._passed_s[way] = now_s
        for _ in range(1 + (random() < weather.duplicate)):
            delay_s = weather.delay_s * random() + (weather.late_s * random() if random() < weather.late else 0.0)
            self._clock.after(0.0001 + delay_s, deliver, message)
