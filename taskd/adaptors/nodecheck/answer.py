"""An order done, and its result written to a descriptor: the common part of a forked and a cold process."""

import os

import msgspec

from taskd.adaptors.nodecheck.probe import run_probe
from taskd.wire.probes import ProbeOrder


def answer(order: ProbeOrder, result_fd: int) -> None:
    """Do an order and write one `ProbeResult` as JSON. If the reader is gone, the result is dropped."""
    rest = memoryview(msgspec.json.encode(run_probe(order)))
    try:
        while rest:
            rest = rest[os.write(result_fd, rest) :]
    except BrokenPipeError:
        pass
