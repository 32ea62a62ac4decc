"""Reads boxes of random content, most behind a true header, in every way an agent reads. Prints how many it opened."""

import contextlib
import random
import sys
from pathlib import Path

from taskd.errors import ShimError
from taskd.runtime.blackbox import Box, Command

template, scratch, seed, rounds = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
HEADER = 16
rng = random.Random(seed)
opened = 0
for _ in range(rounds):
    size = len(template) if rng.random() < 0.9 else rng.randrange(2 * len(template))
    content = bytearray(rng.randbytes(size))
    if rng.random() < 0.8:
        content[:HEADER] = template[:HEADER]
    if rng.random() < 0.5:  # a believable head of the ring
        content[6 * 64 : 6 * 64 + 8] = rng.randrange(5000).to_bytes(8, sys.byteorder)
    scratch.write_bytes(content)
    with contextlib.suppress(ShimError):
        box = Box.open(scratch)
        opened += 1
        box.read()
        box.events(rng.choice((0, 1, 7, 1024)))
        box.await_death(0.0)
        with contextlib.suppress(ShimError):
            box.command(rng.choice(list(Command)), 0.0)
        box.close()
print(opened)
