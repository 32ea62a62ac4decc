"""The moments at which a script's ranks die: drawn from a seed, out of the moments of the undisturbed run.

Rules:

1. A kill is a rank and the number of a moment of it, so it is driven by progress, however busy the machine is.
2. Kinds of moments are drawn first, then one of that kind: an epoch's end is as likely as a step's beginning.
3. The first kill of a run is after the set-up. A later one is at times in the set-up of the first one's newcomer.
4. Half of the kills strike at the moment itself, the others up to `_LATEST_US` later: wherever the process is then.
5. A script may name the places where its kills strike: in an evaluation, in a save, after an epoch's last step. Such a
   kill strikes at the moment itself. It counts the moments of that name alone, since a repeated step shifts all other
   numbers.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_IN_SETUP = 0.3
"""Probability that a later kill strikes the newcomer in its set-up."""
_LATEST_US = 10_000
_SETUP = "setup"


@dataclass(frozen=True)
class Place:
    """A place in a script where a kill strikes.

    Args:
        moment: name of the moment.
        number: which moment of that name, from 1; 0: drawn from the seed.
        rank: its rank; None: drawn from the seed.
    """

    moment: str
    number: int = 0
    rank: int | None = None


class NoPlaceError(Exception):
    """A place of the catalog is not in the script."""


@dataclass(frozen=True)
class Kill:
    """The process of `rank` that reaches its `number`-th moment is killed so many microseconds later.

    With a `moment`, only moments of that name are counted.
    """

    rank: int
    number: int
    delay_us: int
    moment: str = ""

    def __str__(self) -> str:
        return ":".join(map(str, (self.rank, self.number, self.delay_us, *filter(None, [self.moment]))))

    def reached(self, moments: Sequence[str]) -> str:
        """Return the name of the rank's moment that this kill has struck, "" if the rank never came there."""
        found = [name for name in moments if self.moment in ("", name)]
        return found[self.number - 1] if len(found) >= self.number else ""


def draw(moments: dict[int, list[str]], count: int, seed: str, places: Sequence[Place] = ()) -> list[Kill]:
    """Draw the kills for a run whose undisturbed twin had these moments: at the places, or so many anywhere.

    Raises:
        NoPlaceError: no rank comes there.
    """
    dice = random.Random(seed)
    if places:
        return [_at(place, moments, dice) for place in places]
    kills = [_anywhere(moments, dice)]
    while len(kills) < count:
        before = kills[-1]
        setup = [name for name in moments[before.rank] if name.startswith(_SETUP)]
        if setup and dice.random() < _IN_SETUP:
            kills.append(Kill(before.rank, before.number + dice.randint(1, len(setup)), _delay(dice)))
        else:
            kills.append(_anywhere(moments, dice))
    return sorted(set(kills), key=lambda kill: kill.number)


def _at(place: Place, moments: dict[int, list[str]], dice: random.Random) -> Kill:
    counts = {rank: names.count(place.moment) for rank, names in moments.items() if place.rank in (None, rank)}
    ranks = sorted(rank for rank, count in counts.items() if count >= max(1, place.number))
    if not ranks:
        raise NoPlaceError(f"no rank has the moment {place.moment!r} number {place.number}; moments by rank: {counts}")
    rank = dice.choice(ranks)
    return Kill(rank, place.number or dice.randint(1, counts[rank]), 0, place.moment)


def _anywhere(moments: dict[int, list[str]], dice: random.Random) -> Kill:
    rank = dice.choice(sorted(moments))
    kinds = defaultdict(list)
    for number, name in enumerate(moments[rank], start=1):
        if not name.startswith(_SETUP):
            kinds[name].append(number)
    number = dice.choice(kinds[dice.choice(sorted(kinds))])
    return Kill(rank, number, _delay(dice))


def _delay(dice: random.Random) -> int:
    return 0 if dice.random() < 0.5 else dice.randint(1, _LATEST_US)
