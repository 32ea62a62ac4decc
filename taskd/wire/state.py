"""Whose state goes to whom, and what copies of it there are."""

from enum import Enum
from typing import Annotated

import msgspec

from taskd.wire.bounds import Amount, Counter, Line, Many, MaybeCounter, MaybeRank, Name, OfJob, OfWorld, Weights
from taskd.wire.kinds import NOBODY


class StateCopy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A copy of one rank's state of a step, which the rank that reports it can read.

    `place`: it holds the rank's data position and random numbers only.
    """

    of: OfJob
    step: Counter
    place: bool = False


StateCopies = Annotated[tuple[StateCopy, ...], msgspec.Meta(max_length=16)]
"""Two of its own, and two of each rank whose copies it keeps."""


class StateDigest(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one rank holds of the state of a step, as digests: "" where it cannot be read."""

    step: Counter
    weights: Name
    optimizer: Name


StateDigests = Annotated[tuple[StateDigest, ...], msgspec.Meta(max_length=8)]
"""The newest: of a report that is lost, the next one has them again."""


class MeshRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The ranks that have one whole replica of a state that lies on a mesh: what a smaller world can leave out."""

    name: Name = ""
    size: Amount = 0  # ranks
    refusal: Line = ""  # why the job has no rows


class Unshared(Enum):
    """Whether a rank's state differs from that of its replicas."""

    NOTHING = ""
    SERVES = "serves"  # its replicas can take its state, but not it theirs (BatchNorm statistics of rank 0)
    ALONE = "alone"  # neither can take the state of the other


class StateHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one rank has of the job's state: it says so itself, and its agent passes that on."""

    replicas: Name = ""  # what it has of the state, if that is sharded: a replica has the same; "" for all of it
    weights: Weights = ()  # digests of its parameters as its training began and at its first commit, as far as known
    distrusts: MaybeRank = NOBODY  # whose state has not arrived as it was sent
    backs_up: bool = False  # copies of its state are made
    elsewhere: bool = False  # the next node keeps them too
    copies: StateCopies = ()  # of PAUSED: those that are whole and can be read by it
    saved: MaybeCounter = -1  # the step of the newest checkpoint that this job's ranks have written together
    own: Unshared = Unshared.NOTHING
    behind: MaybeCounter = -1  # step whose work behind the commit was interrupted; -1: none
    inexact: Line = ""  # what of its state, or of what it runs, is not exactly what it was before the newest recovery
    digests: StateDigests = ()  # of its state, with `TrainState(verify=…)`
    row: MeshRow | None = None  # the one that it is of; None without a mesh


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One donor and the ranks that receive its state."""

    donor: OfWorld
    receivers: Annotated[tuple[OfWorld, ...], Many]


class Load(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank takes its state from a copy: that of the rank `of`, which `holder` can read, itself or another rank."""

    receiver: OfWorld
    holder: OfWorld
    of: OfJob
