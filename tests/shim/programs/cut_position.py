"""Cuts a position file under the worker that writes it: `cut_position.py BOX FILE LENGTH`."""

import os
import sys
from pathlib import Path

from taskd.adaptors.training.positions.position_file import PositionFile, PositionKind
from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

Recorder().attach(Path(sys.argv[1]), JobRank(3), 1)
file = PositionFile(sys.argv[2])
os.truncate(sys.argv[2], int(sys.argv[3]))
for step in range(6):
    file.write(PositionKind.TENTATIVE, step, (bytes(9000),))
    file.write(PositionKind.COMMITTED, step, (bytes(9000),))
print(sorted(file.read()))
file.close()
