"""A check process whose disk never answers: `mute_disk.py RUN_DIR`."""

import os
import sys

import msgspec

from taskd.adaptors.nodecheck import probe
from taskd.wire.probes import ProbeOrder


def disk(run_dir: str) -> float:
    with open(run_dir, "wb"):
        return 0.0


vars(probe)["disk"] = disk
found = probe.run_probe(ProbeOrder(own=True, run_dir=os.fsencode(sys.argv[1]), timeout_s=5))
os.write(1, msgspec.json.encode(found))
os._exit(0)
