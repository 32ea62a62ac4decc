"""Reads a box in every way while, or after, it is cut. Prints the number of errors for that; a SIGBUS ends it."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box, BoxCommand
from taskd.runtime.box.shim import interface

path, lengths = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
whole = path.read_bytes()
ffi = interface()
reading, events = ffi.new("struct taskd_reading *"), ffi.new("struct taskd_event[]", 1024)


def ways(box: Box) -> list[Callable[[], object]]:
    return [
        box.read,
        box.events,
        box.operations,
        box.kernel,
        box.clocks,
        box.communicators,
        box.postmortem,
        lambda: box.news(reading, events, -1024),
        lambda: box.await_death(0.001),
        lambda: box.command(BoxCommand.PING, 0.001),
    ]


def told(way: Callable[[], object]) -> bool:
    try:
        way()
    except ShimError as error:
        return "was cut short" in str(error)
    return False


def look(box: Box) -> int:
    return sum(map(told, ways(box)))


def cut_again_and_again(end: threading.Event) -> None:
    while not end.is_set():
        for length in lengths:
            os.truncate(path, length)
        os.truncate(path, len(whole))


def open_and_look() -> None:
    with suppress(ShimError), closing(Box.open(path)) as box:
        look(box)


after = 0
for length in lengths:
    path.write_bytes(whole)
    with closing(Box.open(path)) as box:
        os.truncate(path, length)
        after += look(box)
path.write_bytes(whole)
end = threading.Event()
cutter = threading.Thread(target=cut_again_and_again, args=(end,))
with closing(Box.open(path)) as box:
    cutter.start()
    meanwhile = sum(look(box) for _ in range(300))
for _ in range(300):
    open_and_look()
end.set()
cutter.join()
print(after, meanwhile)
