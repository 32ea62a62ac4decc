"""Damage to a file: bits flip, its end is lost, a piece of it lands elsewhere, a writer overwrites words.

Rules:

1. All comes from one seeded generator: the same seed damages in the same way on every machine and every Python.
2. It is cheap: a damage costs some microseconds, so that a million of them can be tried.
"""

import random
from collections.abc import Callable
from typing import Final

WORDS: Final = tuple(
    (value % 2**64).to_bytes(8, "little")
    for value in (0, 1, 2, 3, 255, 1023, 1024, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, -1, -2, 10**18)
)
"""Numbers at the edges of their ranges."""
Damage = Callable[[bytearray, random.Random], None]


def flip(content: bytearray, dice: random.Random) -> None:
    """Flip some bits."""
    for _ in range(dice.choice((1, 1, 2, 8, 40))):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def smear(content: bytearray, dice: random.Random) -> None:
    """Fill a stretch with zeros, ones, or noise."""
    at, length = dice.randrange(len(content)), dice.choice((1, 8, 64, 500))
    length = min(length, len(content) - at)
    content[at : at + length] = dice.choice((bytes(length), b"\xff" * length, dice.randbytes(length)))


def splice(content: bytearray, dice: random.Random) -> None:
    """Copy a piece of it over another place."""
    length = min(dice.choice((8, 64, 200)), len(content))
    source, target = (dice.randrange(len(content) - length + 1) for _ in range(2))
    content[target : target + length] = content[source : source + length]


def overwrite(content: bytearray, dice: random.Random) -> None:
    """Overwrite words with numbers at the edges of their ranges."""
    for _ in range(dice.choice((1, 2, 5))):
        at = dice.randrange(max(1, len(content) // 8)) * 8
        content[at : at + 8] = dice.choice(WORDS)[: len(content) - at]


def cut(content: bytearray, dice: random.Random) -> None:
    """Cut off its end."""
    del content[dice.randrange(len(content)) :]


IN_PLACE: Final[tuple[Damage, ...]] = (flip, smear, splice, overwrite)
ALL: Final[tuple[Damage, ...]] = (*IN_PLACE, cut)


def damage(content: bytearray, dice: random.Random, kinds: tuple[Damage, ...] = ALL) -> None:
    """Apply one to three of these; none if nothing is left."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if content:
            dice.choice(kinds)(content, dice)
