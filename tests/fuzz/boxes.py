"""Damaged and hostile black boxes against all who read them: `python -m tests.fuzz.boxes SEED COUNT`.

Rules:

1. A box is told, or refused with a `ShimError`: anything else is raised, with the seed and the turn that led to it.
2. What an agent has read of it can be sent. What is shown of it is printable, and its document is JSON.
3. Most boxes begin as believable ones, of which some of the parts that are read are damaged: noise is refused at once.
"""

import io
import json
import os
import random
import resource
import struct
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from taskd.cli.documents import as_text, process_document
from taskd.cli.process_page import process_page
from taskd.cli.tables import page
from taskd.core.diagnosis.evidence import Evidence
from taskd.errors import ShimError
from taskd.runtime.agent.box_evidence import tell
from taskd.runtime.agent.observer import progress_of
from taskd.runtime.agent.pace import Pacer
from taskd.runtime.box.blackbox import Box, BoxCommand
from taskd.runtime.records.snapshot import take_snapshot
from taskd.wire.codec import pack, sendable
from taskd.wire.kinds import JobRank
from tests.fuzz.record_damage import IN_PLACE, WORDS, damage

_LINE: Final = 64
_HEADS: Final = 16
"""Lines of the groups of numbers, up to the last words (`csrc/region.h`, which asserts them)."""
_WORDS, _LIBRARIES, _COMMS, _RING = 16, 81, 594, 722
_SLOTS: Final = 1024
_SIZE: Final = (_RING + _SLOTS) * _LINE
_EVENT: Final = struct.Struct("=QqqQQQIIIi")
_COMM: Final = struct.Struct("=QQQQqiiII")
_UNLIKELY: Final = 0.1
_FULL: Final = 0.01
"""Of so many believable boxes the tables are full, which takes as long as fifty others."""
_PACES: Final = 4
_DOCUMENTS: Final = 8
_PAGES: Final = 128
"""One box in so many is made a document, or is shown as a page, which takes as long as twenty others."""


def _put(content: bytearray, line: int, at: int, form: str, *values: Any) -> None:
    struct.pack_into(f"={form}", content, line * _LINE + at, *values)


def believable(header: bytes, dice: random.Random) -> bytearray:
    """A box as a process might have left it."""
    content = bytearray(_SIZE)
    content[:16] = header
    now_ns = time.monotonic_ns()
    pid, step = dice.choice((0, 1, 4_000_000, 4_000_000, os.getpid())), dice.choice((0, 5, 10**6))
    _put(content, 0, 16, "4iq", pid, dice.randrange(8), dice.randrange(3), dice.randrange(1, 3), now_ns - 10**10)
    _put(content, 1, 0, "qQ4q", now_ns, 50, now_ns, now_ns, *(dice.choice((0, now_ns - 10**9)) for _ in range(2)))
    _put(
        content,
        2,
        0,
        "qqqqqq",
        step << 8 | dice.randrange(7),
        now_ns - 10**8,
        now_ns - 10**9,
        10**7,
        32,
        dice.choice((0, now_ns)),
    )
    _put(content, 4, 8, "I", dice.choice((0, pid, pid | 1 << 30, 1 << 30)))
    _put(content, 5, 0, "IiqI", 1, dice.choice((0, 1, 139)), now_ns, dice.choice((0, 1)))
    _put(content, 7, 0, "QIiiiq", dice.choice((0, 2, 3)), 1, 0, pid, 1000, now_ns)
    if dice.random() < 0.5:
        _put_fault(content, dice, now_ns)
    if dice.random() < 0.5:
        text = dice.choice((b"ValueError\n/a.py:3 in f\nno", b"\x1b]0;x\x07\n\xe2\x80\xae\n\x00\xff\nmore", bytes(200)))
        _put(content, _WORDS, 0, "Qqi", dice.choice((2, 4, 5)), now_ns, pid)
        _put(content, _WORDS, 20, "I", dice.choices((len(text), 0, 2**32 - 1), (17, 2, 1))[0])
        _put(content, _WORDS + 1, 0, f"{len(text)}s", text)
    _put_operations(content, dice, now_ns)
    if dice.random() < _UNLIKELY:  # it trains, and its numbers cannot be
        _put(content, 2, 0, "8s32s", b"\1" + dice.choice(WORDS)[1:], b"".join(dice.choices(WORDS, k=4)))
    return content


def _put_fault(content: bytearray, dice: random.Random, now_ns: int) -> None:
    frames = dice.choice((0, 3, 54, 2**32 - 1))
    codes = dice.choice((-6, 0, 1, 2)), dice.choice((-1, 1, 4_000_000)), 1000, 77
    _put(content, 8, 0, "IIiiiiiI", dice.randrange(6), 1, dice.choice((6, 7, 11, 15, -1, 99)), *codes, frames)
    _put(
        content,
        8,
        32,
        "QQqQ16s",
        0xDEAD,
        0x7F0000001000,
        now_ns,
        0,
        dice.choice((b"python", b"\x1b[2J\n", b"\xff" * 16)),
    )
    for frame in range(dice.choice((3, 54))):
        _put(content, 8, 80 + 8 * frame, "Q", 0x7F0000001000 + 64 * frame)
    _put(content, _LIBRARIES, 0, "QI", dice.choice((2, 2, 3)), dice.choice((1, 1, 512, 2**32 - 1)))
    _put(
        content,
        _LIBRARIES + 1,
        0,
        "40sQQQ",
        dice.choice((b"libc.so.6", b"\x1b\n" * 20)),
        0x7F0000000000,
        0x7F0000000000,
        1 << 47,
    )


def _put_operations(content: bytearray, dice: random.Random, now_ns: int) -> None:
    full = dice.random() < _FULL
    noted, head = 1500 if full else dice.choice((0, 3, 8, 20)), dice.choice((0, 0, 10**6))
    _put(content, 6, 0, "QQ", head + noted, dice.choice((0, 2)))
    for number in range(max(1, noted - _SLOTS), noted + 1):
        ticket, began_ns = head + number, now_ns - (noted - number + 1) * 10**6
        left_ns = 0 if number == noted else began_ns + 10**5
        event = (
            ticket,
            began_ns,
            left_ns,
            7 + number % 3,
            number,
            1 << 20,
            dice.choice((0x101, 0x10A, 0x20E, 0x2FF)),
            7,
            99,
            -1,
        )
        _EVENT.pack_into(content, (_RING + (ticket - 1) % _SLOTS) * _LINE, *event)
    for place in range(128 if full else dice.choice((0, 2, 4))):
        _COMM.pack_into(
            content, (_COMMS + place) * _LINE, 2, place % 2, 7 + place, 17, now_ns - 10**9, 4, 1, dice.randrange(5), 0
        )


def _spoil(content: bytearray, dice: random.Random) -> None:
    """The head of it more often than its length would have it, and the operations that are noted."""
    noted = _RING + min(_SLOTS, 24)
    parts = (
        (0, _HEADS),
        (0, 8),
        (8, _WORDS),
        (_WORDS, _WORDS + 3),
        (_LIBRARIES, _LIBRARIES + 2),
        (_COMMS, _COMMS + 4),
        (_RING, noted),
    )
    for first, behind in dice.choices(parts, k=dice.choice((1, 2, 4))):
        keep = 16 if first == 0 and dice.random() < 0.95 else 0  # of another header nothing more is read
        part = content[first * _LINE + keep : behind * _LINE]
        damage(part, dice, IN_PLACE)
        content[first * _LINE + keep : behind * _LINE] = part


class _Reader:
    """Reads the box at one path in every way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.counts = {"boxes": 0, "told": 0, "refused": 0, "left out": 0, "spans": 0}

    def read(self, turn: int) -> None:
        """Raises whatever is no refusal."""
        self.counts["boxes"] += 1
        try:
            with closing(Box.open(self._path)) as box:
                self._as_agent(box, turn)
            snapshot = take_snapshot(self._path)
        except ShimError:
            self.counts["refused"] += 1
            return
        self.counts["told"] += 1
        if turn % _DOCUMENTS == 0:
            document = as_text(process_document(snapshot))
            assert document.isascii()
            json.loads(document, parse_constant=_refuse)
            list(process_page(snapshot, everything=True))
        if turn % _PAGES == 0:
            sink = io.StringIO()
            page(sink, process_page(snapshot, everything=turn % (16 * _PAGES) == 0))
            assert all(char.isprintable() or char == "\n" for char in sink.getvalue())

    def _as_agent(self, box: Box, turn: int) -> None:
        told = tell(box, 48)
        if turn % _PACES == 0:
            pack(told)
        progress = progress_of(box)
        if progress is not None:
            pack(progress)
        self.counts["left out"] += told != Evidence() and told.position.step is None
        if turn % _PACES == 0:
            self._pace(box, turn)
        if turn % _DOCUMENTS == 0:
            box.await_death(0.0)
            box.clocks()
            with suppress(ShimError):
                box.command(BoxCommand.PING, 0.0)

    def _pace(self, box: Box, turn: int) -> None:
        """What it makes of a step that comes between two looks; the observer sends what can be sent."""
        pacer, now_ns = Pacer(JobRank(0)), time.monotonic_ns()
        pacer.look(box, now_ns)
        with self._path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), struct.pack("=qq", (2 << turn % 53) << 8 | 1, now_ns), 2 * _LINE)
        span = pacer.look(box, now_ns)
        self.counts["spans"] += span is not None
        if span is not None and sendable(span):
            pack(span)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in a document")


def run(seed: int, count: int) -> dict[str, int]:
    """Try so many boxes. Returns how many were told and refused; raises what is neither, with the turn in a note."""
    dice = random.Random(seed)
    shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared, prefix="taskd-fuzz-") as folder:
        path = Path(folder) / "box"
        with closing(Box.create(path)):
            header = path.read_bytes()[:16]
        reader = _Reader(path)
        with path.open("r+b", buffering=0) as file:
            for turn in range(count):
                if turn % 16 == 0:
                    whole = believable(header, dice)
                content = whole[:]
                _spoil(content, dice)
                if dice.random() < 0.02:
                    del content[dice.randrange(_SIZE) :]
                os.pwrite(file.fileno(), content, 0)
                os.ftruncate(file.fileno(), len(content))
                try:
                    reader.read(turn)
                except BaseException:
                    print(f"seed {seed}, turn {turn}: the box is kept at {_keep(content)}", file=sys.stderr)
                    raise
    return reader.counts


def _keep(content: bytearray) -> str:
    with tempfile.NamedTemporaryFile(prefix="hostile-", suffix=".box", delete=False) as file:
        file.write(content)
    return file.name


if __name__ == "__main__":
    began_s = time.monotonic()
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    lasted_s = round(time.monotonic() - began_s, 1)
    print(json.dumps({**found, "seed": int(sys.argv[1]), "lasted_s": lasted_s, "peak_mib": peak_mib}))
