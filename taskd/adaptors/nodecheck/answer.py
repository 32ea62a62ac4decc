"""An order done, and its result written to a descriptor: what a forked and a cold process have in common."""

import os

import msgspec

from taskd.adaptors.nodecheck.probe import run_probe
from taskd.wire.probes import ProbeOrder


def answer(order: ProbeOrder, result_fd: int) -> None:
    """Do it and write one `ProbeResult` as JSON. Whoever reads may be gone: then nobody wants it."""
    rest = memoryview(msgspec.json.encode(run_probe(order)))
    try:
        while rest:
            rest = rest[os.write(result_fd, rest) :]
    except BrokenPipeError:
        pass
