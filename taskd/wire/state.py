"""Training states in messages: a rank's state, its copies and digests, and transfers between ranks."""

from enum import Enum
from typing import Annotated

import msgspec

from taskd.wire.bounds import Amount, Counter, Line, Many, MaybeCounter, MaybeRank, Name, OfJob, OfWorld, Weights
from taskd.wire.kinds import NOBODY


class StateCopy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A copy of one rank's state at a step. The rank that reports the copy can read it.

    `place`: the copy holds the rank's data position and random numbers only.
    """

    of: OfJob
    step: Counter
    place: bool = False


StateCopies = Annotated[tuple[StateCopy, ...], msgspec.Meta(max_length=16)]
"""Copies that a rank reports: two of its own state, and two of each rank whose copies it keeps."""


class StateDigest(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Digests of one rank's part of the state at a step; "" for a part that cannot be read."""

    step: Counter
    weights: Name
    optimizer: Name


StateDigests = Annotated[tuple[StateDigest, ...], msgspec.Meta(max_length=8)]
"""The newest digests. Each report repeats them, in case an earlier one was lost."""


class MeshRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A row of a mesh: ranks that together hold one whole replica of the state. A smaller world can leave it out."""

    name: Name = ""
    size: Amount = 0  # number of ranks
    refusal: Line = ""  # why the job has no rows


class Unshared(Enum):
    """Difference between a rank's state and that of its replicas."""

    NOTHING = ""
    SERVES = "serves"  # its replicas can take its state, but it cannot take theirs (BatchNorm statistics of rank 0)
    ALONE = "alone"  # neither can take the state of the other


class StateHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One rank's part of the job's state, as the rank reports it. Its agent passes the report on."""

    replicas: Name = ""  # name of its replica set, whose ranks hold the same part of a sharded state; "": all of it
    weights: Weights = ()  # digests of its parameters at the start and at its first commit, as far as known
    distrusts: MaybeRank = NOBODY  # the rank whose state has not arrived as it was sent
    backs_up: bool = False  # copies of its state are made
    elsewhere: bool = False  # the next node keeps the copies too
    copies: StateCopies = ()  # PAUSED: the whole copies that this rank can read
    saved: MaybeCounter = -1  # step of the newest checkpoint that this job's ranks have written together
    own: Unshared = Unshared.NOTHING
    behind: MaybeCounter = -1  # step whose work after the commit was interrupted; -1: none
    inexact: Line = ""  # difference of its state, or of its code, from that before the newest recovery
    digests: StateDigests = ()  # digests of its state, with `TrainState(verify=…)`
    row: MeshRow | None = None  # its row; None without a mesh


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One donor and the ranks that receive its state."""

    donor: OfWorld
    receivers: Annotated[tuple[OfWorld, ...], Many]


class Load(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Order to one rank: take the state from a copy of the rank `of`. `holder` can read it: the receiver or another."""

    receiver: OfWorld
    holder: OfWorld
    of: OfJob
