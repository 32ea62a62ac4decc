"""What travels when nodes are checked: the order, and what a node has found of itself and of its way to another.

Rules:

1. Nodes are named by their agent's id. A node has as many check processes for each trial as it has local ranks.
2. A report says what was measured; whether that is slow is decided by `core.nodecheck`, which sees all nodes.
3. Rates are of the slowest local rank. 0.0: not measured.
"""

from typing import Annotated

import msgspec

from taskd.wire.bounds import ClockSeconds, Counter, Document, Line, Measured, Name, Port, Seconds, Some


class Own(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a node has found of itself, without another."""

    ok: bool
    cause: Line = ""  # of a failure; with `ok`, what may have made it slower
    compute_tflops: Measured = 0.0  # matrix product, in units of 10**12 operations a second
    memory_gbps: Measured = 0.0  # copied, 10**9 bytes a second
    loopback_gbps: Measured = 0.0  # sent to itself, 10**9 bytes a second
    disk_mbps: Measured = 0.0  # written and synced, 10**6 bytes a second
    clock_s: ClockSeconds = 0.0  # its wall clock less the manager's
    versions: Annotated[dict[Name, Name], Some] = {}
    elapsed_s: Seconds = 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A collective between two nodes. They meet at the store of the first, under `name`."""

    peer: Name  # the other node
    name: Name  # unique in the job
    first: bool  # this node's ranks come first
    store_host: Name
    store_port: Port
    store_key: Name = ""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How it went, seen from one of the two."""

    peer: Name
    ok: bool
    cause: Line = ""  # of a failure
    gbps: Measured = 0.0  # bytes that this node has received a second, 10**9
    latency_s: Seconds = 0.0  # of the smallest collective
    elapsed_s: Seconds = 0.0


class CheckOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to one agent: check yourself (`own`), and your way to others. One of an older number changes nothing."""

    job_id: Name
    number: Counter
    own: bool
    trials: Annotated[tuple[Trial, ...], Some]
    timeout_s: Seconds
    clock_s: ClockSeconds  # the manager's wall clock


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest order has led to, so far: part of an agent's report. `done`: nothing of it is under way."""

    number: Counter
    done: bool = False
    own: Own | None = None
    trials: Annotated[tuple[TrialResult, ...], Some] = ()


class CheckState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a node stands with its check: part of an agent's report. An agent that is asked to help has one too."""

    wants: bool = False  # it is to be checked before it may train
    cleared: bool = False  # it was, and may
    strict: bool = False  # slow nodes are to be excluded too
    ready: bool = False  # its check processes could begin at once
    report: CheckReport | None = None


class Cleared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node may train."""

    note: Line = ""  # what was found of it all the same


class Dismissed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node is to leave the job. The reason begins with the words that people search for."""

    reason: Line


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Operator to manager: check all nodes, and say what is found. Asked again with the same key until it is said."""

    job_id: Name
    key: Name


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to operator: what was found, as JSON; nothing while it is not known, or why it cannot be."""

    key: Name
    document: Document = ""
    refusal: Line = ""
