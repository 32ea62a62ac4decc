"""Whose state goes to whom, and what copies of it there are."""

from typing import Annotated

import msgspec

from taskd.wire.bounds import Amount, Counter, Line, Many, Name, OfJob, OfWorld


class StateCopy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A copy of one rank's state of a step, which the rank that reports it can read."""

    of: OfJob
    step: Counter


StateCopies = Annotated[tuple[StateCopy, ...], msgspec.Meta(max_length=16)]
"""Two of its own, and two of each rank whose copies it keeps."""


class MeshRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The ranks that have one whole replica of a state that lies on a mesh: what a smaller world can leave out."""

    name: Name = ""
    size: Amount = 0  # ranks
    refusal: Line = ""  # why the job has no rows


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One donor and the ranks that receive its state."""

    donor: OfWorld
    receivers: Annotated[tuple[OfWorld, ...], Many]


class Load(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank takes its state from a copy: that of the rank `of`, which `holder` can read, itself or another rank."""

    receiver: OfWorld
    holder: OfWorld
    of: OfJob
