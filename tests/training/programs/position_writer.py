"""Writes a position file until it is killed; the step determines each entry: `position_writer.py FILE`."""

import sys

from taskd.adaptors.training.positions.position_file import PositionFile, PositionKind

file = PositionFile(sys.argv[1])
step = 0
print("ready", flush=True)
while True:
    step += 1
    rng, data = (bytes([step % 251]) * 10_000,), bytes([step % 251]) * (step % 97)
    file.write(PositionKind.TENTATIVE, step, rng, data)
    file.write(PositionKind.COMMITTED, step, rng, data)
