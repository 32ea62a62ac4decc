"""Numbers that a loader's samplers change by themselves in each pass, such as a count of their passes.

Rules:

1. Integers in the `__dict__` of samplers are watched if the sampler is not torch's and has no `state_dict`. As a pass
   begins, those that differ from the values of the set-up are recorded.
2. They are compared when the sampler has given its first index, and when it is exhausted. The sampler counts a number
   that has changed by then, and a resumed pass restores it. In between, `set_epoch` and the rank change no number.
3. Of a pass that is over, the present values of counted numbers are recorded. Other numbers are left to the script.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

_LIMIT: Final = 1 << 63
"""Bound of a recorded number. Larger numbers do not fit into a record; they are seeds, not counts."""
Numbers = dict[str, int]
"""Values by "index of the sampler.attribute"."""


class PassNumbers:
    """Numbers of one loader's samplers.

    Args:
        samplers: returns the samplers to compare.
    """

    def __init__(self, samplers: Callable[[], Iterable[Any]]) -> None:
        self._samplers = samplers
        self._first = self._begun = self._all()
        self._counted: list[str] = []
        self._resumes = False

    def resume(self) -> None:
        """Treat the next pass to begin as a resumed one."""
        self._resumes = True

    def begin(self, of_pass: Numbers, counted: list[str]) -> None:
        """Prepare the numbers of a pass, whose samplers are about to begin. A resumed pass gets its own ones back.

        The numbers are recorded in `of_pass`. Names of counted numbers are added to `counted` as they become known.
        """
        counted.extend(name for name in self._counted if name not in counted)
        if self._resumes:
            self._resumes = False
            self._put({name: value for name, value in (self._first | of_pass).items() if name in counted})
        self._begun, self._counted = self._all(), counted
        of_pass.update((name, value) for name, value in self._begun.items() if self._first.get(name) != value)

    def compare(self) -> None:
        """Find counted numbers. Call it when the samplers have given their first index, and when they are exhausted."""
        now = self._all()
        self._counted += (
            name for name, value in self._begun.items() if now.get(name, value) != value and name not in self._counted
        )

    def present(self) -> Numbers:
        """Return the present values of counted numbers."""
        return {name: value for name, value in self._all().items() if name in self._counted}

    def restore(self, numbers: Numbers, counted: list[str]) -> None:
        """Restore the numbers of a pass that is over, or of the time before the first pass."""
        self._counted = [*counted, *(name for name in self._counted if name not in counted)]
        self._put({name: self._first[name] for name in self._counted if name in self._first} | numbers)

    def attributes(self) -> set[tuple[int, str]]:
        """Return the counted attributes, as pairs of the sampler's id and the attribute's name."""
        holders = {str(index): id(one) for index, one in enumerate(self._samplers())}
        split = (name.partition(".") for name in self._counted)
        return {(holders[index], attribute) for index, _, attribute in split if index in holders}

    # Inside.

    def _put(self, numbers: Numbers) -> None:
        holders = {str(index): getattr(one, "__dict__", {}) for index, one in enumerate(self._samplers())}
        for name, value in numbers.items():
            index, _, attribute = name.partition(".")
            if type(holders.get(index, {}).get(attribute)) is int:
                holders[index][attribute] = value

    def _all(self) -> Numbers:
        return {
            f"{index}.{name}": value
            for index, sampler in enumerate(self._samplers())
            for name, value in getattr(sampler, "__dict__", {}).items()
            if type(value) is int and -_LIMIT <= value < _LIMIT
        }


def counts_epochs(counted: Iterable[str]) -> bool:
    """Return whether a sampler counts its epochs by itself."""
    return any(name.endswith(".epoch") for name in counted)
