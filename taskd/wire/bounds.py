"""What the fields of messages may hold. Checked when a frame is decoded, for every field of every message.

Rules:

1. A number has a range in which what is done with it stays within 64 bits. Floats are finite: a range refuses NaN too.
2. A text is as long as somebody reads, and has no control characters: it ends up in logs, terminals, journals and
   environments. Whoever takes one in from outside makes it so first (`wire.text`).
3. A sequence has as many items as the largest job (100,000 ranks) and the bound of a frame allow.
4. A bound is generous: what an honest peer says is never refused.
"""

from typing import Annotated, Final

from msgspec import Meta

from taskd.wire.kinds import JobRank, LocalRank, NodeRank, WorldRank

MOST_RANKS: Final = 1 << 20
LARGEST: Final = (1 << 53) - 1
"""Exact in a double too, as readers of JSON have them."""
LONGEST_S: Final = 1e10
"""300 years: of a wall clock as well as of a duration."""
LINE_CHARS: Final = 4096
NAME_CHARS: Final = 255
PAGE_CHARS: Final = 100_000

NO_CONTROLS: Final = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
ONLY_LINE_ENDS: Final = r"\A[^\x00-\x08\x0b-\x1f\x7f-\x9f]*\Z"

OfJob = Annotated[JobRank, Meta(ge=0, lt=MOST_RANKS)]
OfWorld = Annotated[WorldRank, Meta(ge=0, lt=MOST_RANKS)]
MaybeRank = Annotated[JobRank, Meta(ge=-1, lt=MOST_RANKS)]
"""-1: none."""
OfLocal = Annotated[LocalRank, Meta(ge=0, lt=MOST_RANKS)]
OfNode = Annotated[NodeRank, Meta(ge=0, lt=MOST_RANKS)]
MaybeNode = Annotated[NodeRank, Meta(ge=-1, lt=MOST_RANKS)]
"""-1: none."""
MaybeIndex = Annotated[int, Meta(ge=-1, lt=MOST_RANKS)]
"""A rank or a size of a group that is not the world, or a device. -1: none."""
Amount = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
"""Of ranks, nodes, processes, restarts."""
Counter = Annotated[int, Meta(ge=0, le=LARGEST)]
"""A sequence number, a term, a generation, an incarnation."""
MaybeCounter = Annotated[int, Meta(ge=-1, le=LARGEST)]
"""-1: none. A step, too."""
NUMBERS: Final = (1 << 31) - 1
"""Of worlds and processes that may be ordered: black boxes and the core in C have them in 32 bits, and 1 is added."""
Number = Annotated[int, Meta(ge=0, lt=NUMBERS)]
"""A generation or an incarnation, as ordered."""
MaybeNumber = Annotated[int, Meta(ge=-1, lt=NUMBERS)]
"""-1: none."""
Signed = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Unsigned64 = Annotated[int, Meta(ge=0)]
"""An address or an id, with which nothing is calculated."""
Pid = Annotated[int, Meta(ge=0, lt=1 << 31)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
Status = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""How a process ended."""
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A duration, or a time on a monotonic clock."""
ClockSeconds = Annotated[float, Meta(ge=-LONGEST_S, le=LONGEST_S)]
"""A wall clock, or what lies between two of them."""
Measured = Annotated[float, Meta(ge=0, le=1e18)]
"""In a unit of its own."""
Name = Annotated[str, Meta(max_length=NAME_CHARS, pattern=NO_CONTROLS)]
"""Of a job, a node, an agent, a host, a kind of something."""
Weights = Annotated[tuple[Name, ...], Meta(max_length=2)]
"""Digests of a rank's parameters: as its training began, and at its first commit."""
Line = Annotated[str, Meta(max_length=LINE_CHARS, pattern=NO_CONTROLS)]
"""For people."""
Page = Annotated[str, Meta(max_length=PAGE_CHARS, pattern=ONLY_LINE_ENDS)]
"""For people, of several lines."""
Document = Annotated[str, Meta(max_length=8 << 20)]
"""For programs, as JSON, which escapes what a terminal obeys."""
Raw = Annotated[bytes, Meta(max_length=200 << 10)]
"""For the kernel alone: part of an environment, an argument, a path. The kernel knows no encoding."""
Many = Meta(max_length=MOST_RANKS)
Some = Meta(max_length=4096)
