"""Schedule of an uneven job: generated from a seed, the same for a simulated job and for a real one.

Rules:

1. Lengths are in usual steps. The first step takes 30, and about one step in 40 takes 10. After every 50th step comes
   an evaluation of 5 to 20, after every 100th a checkpoint of 3 to 12. Steps vary by a fifth, evaluations and
   checkpoints by a tenth.
2. Nothing is announced to taskd.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FIRST: Final = 30.0
SLOW: Final = 10.0
EVALUATION_STEPS: Final = 50
CHECKPOINT_STEPS: Final = 100
_SLOW_STEPS: Final = 40
_JITTER: Final = 0.2


@dataclass(frozen=True)
class Step:
    """One step, and the evaluation and checkpoint after its commit. `slow` is True for a slow step."""

    number: int
    work: float
    slow: bool
    evaluation: float = 0.0
    checkpoint: float = 0.0


def steps(seed: int) -> Iterator[Step]:
    """Yield steps without end, from step 1 on."""
    dice = random.Random(seed)
    evaluation, checkpoint = dice.uniform(5, 20), dice.uniform(3, 12)
    next_slow = dice.randrange(2, 2 * _SLOW_STEPS)
    number = 0
    while True:
        number += 1
        slow = number == next_slow
        if slow:
            next_slow += dice.randrange(1, 2 * _SLOW_STEPS)
        usual = FIRST if number == 1 else SLOW if slow else 1.0
        yield Step(
            number,
            work=usual * dice.uniform(1 - _JITTER, 1 + _JITTER),
            slow=slow,
            evaluation=0.0 if number % EVALUATION_STEPS else evaluation * dice.uniform(0.9, 1.1),
            checkpoint=0.0 if number % CHECKPOINT_STEPS else checkpoint * dice.uniform(0.9, 1.1),
        )
