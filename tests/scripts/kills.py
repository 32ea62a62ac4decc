"""Which moments of a script's ranks are their last: drawn from a seed, out of the moments of the undisturbed run.

Rules:

1. A kill is a rank and the number of a moment of it, so it is driven by progress, however busy the machine is.
2. Kinds of moments are drawn first, then one of that kind: an epoch's end is as likely as a step's beginning.
3. The first kill of a run is after the set-up. A later one is at times in the set-up of the first one's newcomer.
4. Half of the kills strike at the moment itself, the others up to `_LATEST_US` later: wherever the process is then.
"""

import random
from collections import defaultdict
from dataclasses import dataclass

_IN_SETUP = 0.3
"""So often a later kill strikes the newcomer as it sets itself up."""
_LATEST_US = 10_000
_SETUP = "setup"


@dataclass(frozen=True)
class Kill:
    """The process of `rank` that reaches its `number`-th moment is killed so many microseconds later."""

    rank: int
    number: int
    delay_us: int

    def __str__(self) -> str:
        return f"{self.rank}:{self.number}:{self.delay_us}"


def draw(moments: dict[int, list[str]], count: int, seed: str) -> list[Kill]:
    """So many kills for a run whose undisturbed twin had these moments."""
    dice = random.Random(seed)
    kills = [_anywhere(moments, dice)]
    while len(kills) < count:
        before = kills[-1]
        setup = [name for name in moments[before.rank] if name.startswith(_SETUP)]
        if setup and dice.random() < _IN_SETUP:
            kills.append(Kill(before.rank, before.number + dice.randint(1, len(setup)), _delay(dice)))
        else:
            kills.append(_anywhere(moments, dice))
    return sorted(set(kills), key=lambda kill: kill.number)


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
