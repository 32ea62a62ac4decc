"""Virtual time: a heap of scheduled calls, run in order, with a trace of what happened."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Clock that stands still during each call. Calls due at one moment run in the order of their scheduling."""

    def __init__(self, *, tracing: bool = False) -> None:
        self.now_s = 0.0
        self.trace: list[str] = []
        self.tracing = tracing
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, act: Callable[..., object], *args: Any) -> None:
        """Schedule a call `delay_s` from now."""
        self._count += 1
        heappush(self._due, (self.now_s + delay_s, self._count, act, args))

    def run(self, until_s: float, over: Callable[[], bool]) -> bool:
        """Run the due calls until `over`, at most up to `until_s`. Return False if that time came first."""
        while self._due and not over():
            at_s, _, act, args = heappop(self._due)
            if at_s > until_s:
                return False
            self.now_s = at_s
            act(*args)
        return over()

    def note(self, who: str, what: str, *args: object) -> None:
        """Add a line to the trace."""
        if self.tracing:
            self.trace.append(f"{self.now_s:9.3f}  {who:<10}  {what.format(*args)}")
