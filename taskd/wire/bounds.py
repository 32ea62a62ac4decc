"""Bounds of message fields, checked for every field of every message when a frame is decoded.

Rules:

1. The range of a number keeps all calculations with it within 64 bits. Floats are finite: a range rejects NaN too.
2. A text is no longer than a person reads. It has no control characters, because it ends up in logs, terminals,
   journals and environments. Code that receives a text from outside makes it fit first (`wire.text`).
3. The largest job (100,000 ranks) and the bound of a frame limit the items of a sequence.
4. A bound is generous: a message of an honest peer is never rejected.
"""

from typing import Annotated, Final

from msgspec import Meta

from taskd.wire.kinds import JobRank, LocalRank, NodeRank, WorldRank

MOST_RANKS: Final = 1 << 20
LARGEST: Final = (1 << 53) - 1
"""Largest integer that is exact in a double too: readers of JSON use doubles."""
LONGEST_S: Final = 1e10
"""300 years in seconds, for wall clocks and for durations."""
LINE_CHARS: Final = 4096
NAME_CHARS: Final = 255
PAGE_CHARS: Final = 100_000

NO_CONTROLS: Final = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
ONLY_LINE_ENDS: Final = r"\A[^\x00-\x08\x0b-\x1f\x7f-\x9f]*\Z"

OfJob = Annotated[JobRank, Meta(ge=0, lt=MOST_RANKS)]
OfWorld = Annotated[WorldRank, Meta(ge=0, lt=MOST_RANKS)]
MaybeRank = Annotated[JobRank, Meta(ge=-1, lt=MOST_RANKS)]
"""A rank of the job. -1: none."""
OfLocal = Annotated[LocalRank, Meta(ge=0, lt=MOST_RANKS)]
OfNode = Annotated[NodeRank, Meta(ge=0, lt=MOST_RANKS)]
MaybeNode = Annotated[NodeRank, Meta(ge=-1, lt=MOST_RANKS)]
"""A place of the job. -1: none."""
MaybeIndex = Annotated[int, Meta(ge=-1, lt=MOST_RANKS)]
"""A rank or a size of a group that is not the world, or a device. -1: none."""
Amount = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
"""A count of ranks, nodes, processes or restarts."""
Counter = Annotated[int, Meta(ge=0, le=LARGEST)]
"""A sequence number, a term, a generation, an incarnation."""
MaybeCounter = Annotated[int, Meta(ge=-1, le=LARGEST)]
"""A counter or a step. -1: none."""
NUMBERS: Final = (1 << 31) - 1
"""Bound of the generations and incarnations that may be ordered.

Black boxes and the core in C hold them in 32 bits, and add 1.
"""
Number = Annotated[int, Meta(ge=0, lt=NUMBERS)]
"""A generation or an incarnation, as ordered."""
MaybeNumber = Annotated[int, Meta(ge=-1, lt=NUMBERS)]
"""A generation or an incarnation, as ordered. -1: none."""
Signed = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Unsigned64 = Annotated[int, Meta(ge=0)]
"""An address or an id. Nothing is calculated with it."""
Pid = Annotated[int, Meta(ge=0, lt=1 << 31)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
Status = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Exit status of a process."""
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A duration, or a time on a monotonic clock."""
ClockSeconds = Annotated[float, Meta(ge=-LONGEST_S, le=LONGEST_S)]
"""A time of a wall clock, or the difference between two wall clocks."""
Measured = Annotated[float, Meta(ge=0, le=1e18)]
"""A measured value, in the unit of its field."""
Name = Annotated[str, Meta(max_length=NAME_CHARS, pattern=NO_CONTROLS)]
"""Name of a job, a node, an agent, a host or a kind."""
Weights = Annotated[tuple[Name, ...], Meta(max_length=2)]
"""Digests of a rank's parameters: at the start of its training, and at its first commit."""
Line = Annotated[str, Meta(max_length=LINE_CHARS, pattern=NO_CONTROLS)]
"""One line of text for people."""
Page = Annotated[str, Meta(max_length=PAGE_CHARS, pattern=ONLY_LINE_ENDS)]
"""Several lines of text for people."""
Document = Annotated[str, Meta(max_length=8 << 20)]
"""JSON for programs. JSON escapes control characters that a terminal would obey."""
Raw = Annotated[bytes, Meta(max_length=200 << 10)]
"""Bytes for the kernel alone: part of an environment, an argument, a path. The kernel uses no encoding."""
Many = Meta(max_length=MOST_RANKS)
Some = Meta(max_length=4096)
