"""What torch's launcher does in other ways in other versions, and what of ours is for each.

Nothing here imports torch: the table of seams names these, and is read before it is known whether torch fits.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from typing_extensions import override


class Tails(Protocol):
    """Where torchrun's context keeps the followers of log files that it stops at its end."""

    def of(self, context: Any) -> tuple[Any, ...]:
        """Those that the context has begun with."""

    def add(self, context: Any, tails: Iterable[Any]) -> None:
        """Have the context stop these too."""

    def remove(self, context: Any, tail: Any) -> None:
        """It has been stopped."""

    def options(self, tail: Any) -> dict[str, Any]:
        """What a new follower takes over from `tail`, beside name, files, destination and prefixes."""


class ListOfTails(Tails):
    """One list, and lines may be filtered: the newer way."""

    @override
    def of(self, context: Any) -> tuple[Any, ...]:
        return tuple(context._tail_logs)

    @override
    def add(self, context: Any, tails: Iterable[Any]) -> None:
        context._tail_logs.extend(tails)

    @override
    def remove(self, context: Any, tail: Any) -> None:
        context._tail_logs.remove(tail)

    @override
    def options(self, tail: Any) -> dict[str, Any]:
        return {"log_line_filter": tail._log_line_filter}


class TwoTails(Tails):
    """One for stdout and one for stderr: the older way. Ours are stopped with the one for stdout."""

    @override
    def of(self, context: Any) -> tuple[Any, ...]:
        return (context._stdout_tail, context._stderr_tail)

    @override
    def add(self, context: Any, tails: Iterable[Any]) -> None:
        if not isinstance(context._stdout_tail, _Several):
            context._stdout_tail = _Several(context._stdout_tail)
        context._stdout_tail.others.extend(tails)

    @override
    def remove(self, context: Any, tail: Any) -> None:
        context._stdout_tail.others.remove(tail)

    @override
    def options(self, tail: Any) -> dict[str, Any]:
        del tail
        return {}


class _Several:
    """What torch calls of one follower, for several."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self.others: list[Any] = []

    def stop(self) -> None:
        for tail in (self._first, *self.others):
            tail.stop()

    def stopped(self) -> bool:
        return bool(self._first.stopped())


class Binding(Protocol):
    """How torchrun binds a rank's processes to the cores of its device."""

    def of(self, context: Any) -> Any:
        """The binding that was asked for, None if none."""

    def options(self, context: Any) -> dict[str, Any]:
        """What torch's own start of one process takes for it."""


class NumaBinding(Binding):
    """`--numa-binding`."""

    @override
    def of(self, context: Any) -> Any:
        return context._numa_options

    @override
    def options(self, context: Any) -> dict[str, Any]:
        return {"numa_options": context._numa_options}


class NoBinding(Binding):
    """There is none yet."""

    @override
    def of(self, context: Any) -> None:
        del context

    @override
    def options(self, context: Any) -> dict[str, Any]:
        del context
        return {}
