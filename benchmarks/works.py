"""Work of scripts other than steps: generated from a seed, the same for a simulated job and for a real one.

Rules:

1. Each piece of work comes 20 to 120 steps after the one before, and takes 5 to 300 s: as often 5 to 40 as 40 to 300.
2. Rank 0 does it alone, and the others wait in a barrier. Every rank evaluates. Nothing is announced to taskd.
3. The first piece of work comes before the first step.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("upload", "numpy", "socket", "sleep", "loop", "collect", "compile", "save")
EVALUATION: Final = "evaluate"
_RARE: Final = 10
_SHORTEST_S: Final = 5.0
LONGEST_S: Final = 300.0
_STEPS: Final = (20, 120)


@dataclass(frozen=True)
class Work:
    """Work of this kind, of `seconds` seconds, after step `after`."""

    after: int
    kind: str
    seconds: float


def works(seed: int) -> Iterator[Work]:
    """Yield pieces of work without end."""
    dice = random.Random(seed)
    after = 0
    while True:
        kind = EVALUATION if after and not dice.randrange(_RARE) else dice.choice(KINDS)
        yield Work(after, kind, math.exp(dice.uniform(math.log(_SHORTEST_S), math.log(LONGEST_S))))
        after += dice.randrange(*_STEPS)
