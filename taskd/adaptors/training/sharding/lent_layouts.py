"""Bucket layouts of DDP wrappers that travel with a state, by the wrappers' places among those of the process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from taskd.errors import RebuildError

Layout = list[list[int]]
"""The buckets of a wrapper, as lists of parameter indices."""


@dataclass
class LentLayouts:
    """Layouts that this rank sends with its own state, and layouts that it gets with another rank's state.

    Attributes:
        own: layouts of this rank's settled wrappers, for copies of its state.
        gives: layouts that some other rank needs.
        takes: for each wrapper that needs a layout, the function that imposes it.
        may_take: the same in a world of new processes, which use the layouts of the copies that they load, if any.
    """

    own: dict[int, Layout] = field(default_factory=dict)
    gives: dict[int, Layout] = field(default_factory=dict)
    takes: dict[int, Callable[[Layout], None]] = field(default_factory=dict)
    may_take: dict[int, Callable[[Layout], None]] = field(default_factory=dict)

    def arrive(self, layouts: Mapping[int, Layout]) -> None:
        """Impose the layouts that were received with a state.

        Raises:
            RebuildError: a needed layout was not received, or DDP did not take it.
        """
        takes, self.takes = self.takes, {}
        for place, impose in takes.items():
            if place not in layouts:
                raise RebuildError(f"the donor's state has no bucket layout for DDP wrapper {place}, expected one")
            impose(layouts[place])
        may_take, self.may_take = self.may_take, {}
        for place, impose in may_take.items():
            if place in layouts:
                impose(layouts[place])
                self.gives[place] = layouts[place]
