"""Makes two nodes with processes in one of them, and waits: `nodes_of_its_own.py OUTPUT`."""

import sys
import time
from pathlib import Path

from tests.nodes import Nodes

with Nodes(2) as nodes:
    nodes[1].start(["sh", "-c", "setsid sleep 100 & echo runs; exec sleep 100"], output=Path(sys.argv[1]))
    time.sleep(100)
