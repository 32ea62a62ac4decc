"""What scripts do that is no step: generated from a seed, the same for a simulated job and for a real one.

Rules:

1. Each piece of work comes 20 to 120 steps after the one before, and takes 5 to 300 s: as often 5 to 40 as 40 to 300.
2. Rank 0 does it alone, and the others wait in a barrier; every rank evaluates. Nobody announces anything.
3. The first step takes as long as a piece of work does.
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
    """After step `after`, somebody is at this for so long."""

    after: int
    kind: str
    seconds: float


def works(seed: int) -> Iterator[Work]:
    """Without end."""
    dice = random.Random(seed)
    after = 0
    while True:
        kind = EVALUATION if after and not dice.randrange(_RARE) else dice.choice(KINDS)
        yield Work(after, kind, math.exp(dice.uniform(math.log(_SHORTEST_S), math.log(LONGEST_S))))
        after += dice.randrange(*_STEPS)
