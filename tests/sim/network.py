"""The network between agents and manager: it drops, delays, doubles and reorders."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.clock import Clock
from tests.sim.scenario import Weather

LONGEST_SILENCE_S = 6.0
"""No loss lasts as long as the limit at which a node counts as dead."""


class Network:
    """Carries messages between the manager and the nodes."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather) -> None:
        self._clock = clock
        self._rng = rng
        self._weather = weather
        self._burst_until_s: dict[int, float] = {}
        self._passed_s: dict[tuple[int, bool], float] = {}

    def burst(self, node_rank: int, length_s: float) -> None:
        """Lose everything to and from this node for a while."""
        self._burst_until_s[node_rank] = self._clock.now_s + length_s

    def send(self, node_rank: int, up: bool, deliver: Callable[[Any], object], message: Any) -> None:
        """Hand `message` to `deliver` later, once or twice, or never."""
        weather, random, now_s = self._weather, self._rng.random, self._clock.now_s
        way = (node_rank, up)
        overdue = now_s - self._passed_s.setdefault(way, now_s)
        if overdue < LONGEST_SILENCE_S and (now_s < self._burst_until_s.get(node_rank, 0.0) or random() < weather.drop):
            return
        self._passed_s[way] = now_s
        for _ in range(1 + (random() < weather.duplicate)):
            delay_s = weather.delay_s * random() + (weather.late_s * random() if random() < weather.late else 0.0)
            self._clock.after(0.0001 + delay_s, deliver, message)
