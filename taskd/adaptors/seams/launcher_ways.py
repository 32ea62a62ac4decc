"""Things that torch's launcher does differently in different versions, and our code for each.

Nothing here imports torch: the table of seams names these classes, and is read before it is clear whether torch fits.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from typing_extensions import override


class Tails(Protocol):
    """The place where torchrun's context keeps the followers of log files that it stops at its end."""

    def of(self, context: Any) -> tuple[Any, ...]:
        """Return the followers that the context has started with."""

    def add(self, context: Any, tails: Iterable[Any]) -> None:
        """Make the context stop these followers too."""

    def remove(self, context: Any, tail: Any) -> None:
        """Remove a follower that has been stopped."""

    def options(self, tail: Any) -> dict[str, Any]:
        """Return the options that a new follower copies from `tail`, besides name, files, destination and prefixes."""


class ListOfTails(Tails):
    """The newer way: one list, and lines may be filtered."""

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
    """The older way: one follower for stdout and one for stderr. Ours are stopped with the one for stdout."""

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
    """Several followers, with the methods that torch calls on one."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self.others: list[Any] = []

    def stop(self) -> None:
        for tail in (self._first, *self.others):
            tail.stop()

    def stopped(self) -> bool:
        return bool(self._first.stopped())


class Binding(Protocol):
    """torchrun's way to bind a rank's processes to the cores of its device."""

    def of(self, context: Any) -> Any:
        """Return the requested binding, None if there is none."""

    def options(self, context: Any) -> dict[str, Any]:
        """Return the options for the binding in torch's own start of one process."""


class NumaBinding(Binding):
    """`--numa-binding`."""

    @override
    def of(self, context: Any) -> Any:
        return context._numa_options

    @override
    def options(self, context: Any) -> dict[str, Any]:
        return {"numa_options": context._numa_options}


class NoBinding(Binding):
    """A torch that has no binding yet."""

    @override
    def of(self, context: Any) -> None:
        del context

    @override
    def options(self, context: Any) -> dict[str, Any]:
        del context
        return {}
