"""Numbers that a loader's samplers change by themselves in each pass, such as a count of their passes.

Rules:

1. The integers in the `__dict__` of samplers that are not torch's and have no `state_dict` are recorded as a pass
   begins, where they differ from those of the set-up.
2. They are compared when the sampler has given its first index, and when it is exhausted. What has changed by then is
   counted by the sampler, and put back when the pass resumes. What `set_epoch` sets has not; nor has a rank's number.
3. Of a pass that is over, the present values of counted numbers are recorded. Other numbers are the script's to set.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

_LIMIT: Final = 1 << 63
"""Larger numbers do not fit into a record; they are seeds, and no counts."""
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
        """The next pass to begin is one that was begun before."""
        self._resumes = True

    def begin(self, of_pass: Numbers, counted: list[str]) -> None:
        """The samplers are about to begin: put back the numbers of this pass, or record them in `of_pass`.

        Names of counted numbers are added to `counted` as they become known.
        """
        counted.extend(name for name in self._counted if name not in counted)
        if self._resumes:
            self._resumes = False
            self._put({name: value for name, value in (self._first | of_pass).items() if name in counted})
        self._begun, self._counted = self._all(), counted
        of_pass.update((name, value) for name, value in self._begun.items() if self._first.get(name) != value)

    def compare(self) -> None:
        """Find counted numbers: the samplers have given their first index, or are exhausted."""
        now = self._all()
        self._counted += (
            name for name, value in self._begun.items() if now.get(name, value) != value and name not in self._counted
        )

    def present(self) -> Numbers:
        """Return the present values of counted numbers."""
        return {name: value for name, value in self._all().items() if name in self._counted}

    def restore(self, numbers: Numbers, counted: list[str]) -> None:
        """Put back the numbers of a pass that is over, or of the time before the first."""
        self._counted = [*counted, *(name for name in self._counted if name not in counted)]
        self._put({name: self._first[name] for name in self._counted if name in self._first} | numbers)

    def attributes(self) -> set[tuple[int, str]]:
        """Return the counted attributes: the sampler's id, and the attribute's name."""
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
