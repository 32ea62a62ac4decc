"""What happens to a file: bits turn, its end is lost, a piece of it lands elsewhere, somebody writes what he likes.

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
"""At the edges of what a number may be."""
Damage = Callable[[bytearray, random.Random], None]


def flip(content: bytearray, dice: random.Random) -> None:
    """Some bits are others."""
    for _ in range(dice.choice((1, 1, 2, 8, 40))):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def smear(content: bytearray, dice: random.Random) -> None:
    """A stretch is all zeros, all ones, or noise."""
    at, length = dice.randrange(len(content)), dice.choice((1, 8, 64, 500))
    length = min(length, len(content) - at)
    content[at : at + length] = dice.choice((bytes(length), b"\xff" * length, dice.randbytes(length)))


def splice(content: bytearray, dice: random.Random) -> None:
    """A piece of it stands in another place, over what was there."""
    length = min(dice.choice((8, 64, 200)), len(content))
    source, target = (dice.randrange(len(content) - length + 1) for _ in range(2))
    content[target : target + length] = content[source : source + length]


def overwrite(content: bytearray, dice: random.Random) -> None:
    """Words at the edges of what a number may be."""
    for _ in range(dice.choice((1, 2, 5))):
        at = dice.randrange(max(1, len(content) // 8)) * 8
        content[at : at + 8] = dice.choice(WORDS)[: len(content) - at]


def cut(content: bytearray, dice: random.Random) -> None:
    """Its end is lost."""
    del content[dice.randrange(len(content)) :]


IN_PLACE: Final[tuple[Damage, ...]] = (flip, smear, splice, overwrite)
ALL: Final[tuple[Damage, ...]] = (*IN_PLACE, cut)


def damage(content: bytearray, dice: random.Random, kinds: tuple[Damage, ...] = ALL) -> None:
    """One to three of these; nothing, where nothing is left."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if content:
            dice.choice(kinds)(content, dice)
