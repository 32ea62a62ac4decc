"""Damage to any bytes, as by disks, cut transfers and people."""

import random
from collections.abc import Sequence


def damaged(data: bytes, dice: random.Random, inserted: Sequence[bytes]) -> bytes:
    """Return bytes that were changed, cut off, left out, doubled or inserted, once or a few times."""
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        data = _once(data, dice, inserted)
    return data


def _once(data: bytes, dice: random.Random, inserted: Sequence[bytes]) -> bytes:
    at, size = dice.randrange(len(data) + 1), dice.choice((1, 1, 2, 4, 16, 64))
    way = dice.randrange(6)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + data[at + size :]
    if way == 2:
        return data[:at] + data[at : at + size] + data[at:]
    if way == 3:
        return data[:at] + dice.choice(inserted) + data[at:]
    changed = dice.randbytes(size) if way == 4 else bytes([(data[at : at + 1] or b"\0")[0] ^ 1 << dice.randrange(8)])
    return data[:at] + changed + data[at + len(changed) :]
