"""Cuts a box, releases its worker, and prints whether each way of reading reports the cut: `cut_agent.py BOX GO`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box, BoxCommand

box = Box.open(Path(sys.argv[1]))
os.truncate(box.path, 0)
Path(sys.argv[2]).touch()
ways: list[Callable[[], object]] = [
    box.read,
    box.events,
    box.clocks,
    box.communicators,
    box.postmortem,
    box.await_death,
    lambda: box.command(BoxCommand.PING),
]


def tell(way: Callable[[], object]) -> None:
    try:
        print(way())
    except ShimError as error:
        print("was cut short (ENODATA); let nobody else write there" in str(error))


for way in ways:
    tell(way)
