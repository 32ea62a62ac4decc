"""Reads boxes of random content, most behind a true header, in every way an agent reads. Prints how many it opened."""

import contextlib
import random
import sys
from pathlib import Path

from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box, BoxCommand

template, scratch, seed, rounds = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
HEADER = 16
STATES = (8 * 64, 8 * 64 + 4)  # the fault's, which is read only if this is believable
rng = random.Random(seed)
opened = 0
for _ in range(rounds):
    size = len(template) if rng.random() < 0.9 else rng.randrange(2 * len(template))
    content = bytearray(rng.randbytes(size))
    if rng.random() < 0.8:
        content[:HEADER] = template[:HEADER]
    if rng.random() < 0.5:  # a believable head of the ring
        content[6 * 64 : 6 * 64 + 8] = rng.randrange(5000).to_bytes(8, sys.byteorder)
    if rng.random() < 0.5:
        content[slice(*STATES)] = rng.randrange(6).to_bytes(4, sys.byteorder)
        content[7 * 64 : 7 * 64 + 8] = (2 * rng.randrange(9)).to_bytes(8, sys.byteorder)  # the request's lock
        content[16 * 64 : 16 * 64 + 8] = (2 * rng.randrange(9)).to_bytes(8, sys.byteorder)  # the words' lock
    scratch.write_bytes(content)
    with contextlib.suppress(ShimError):
        box = Box.open(scratch)
        opened += 1
        box.read()
        box.events(rng.choice((0, 1, 7, 1024)))
        box.clocks()
        box.communicators()
        box.postmortem()
        box.await_death(0.0)
        with contextlib.suppress(ShimError):
            box.command(rng.choice(list(BoxCommand)), 0.0)
        box.close()
print(opened)
