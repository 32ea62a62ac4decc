"""Messages of node checks: the order, and a node's results for itself and for its links to other nodes.

Rules:

1. The agent's id names a node. For each trial a node has one check process per local rank.
2. A report holds measurements. `core.nodecheck` decides whether they are slow, because it compares all nodes.
3. Rates are those of the slowest local rank. 0.0: not measured.
"""

from typing import Annotated

import msgspec

from taskd.wire.bounds import ClockSeconds, Counter, Document, Line, Measured, Name, Port, Seconds, Some


class Own(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A node's results for itself, without another node."""

    ok: bool
    cause: Line = ""  # reason of the failure; if `ok`, a possible reason for lower rates
    compute_tflops: Measured = 0.0  # matrix product, in units of 10**12 operations a second
    memory_gbps: Measured = 0.0  # copied, 10**9 bytes a second
    loopback_gbps: Measured = 0.0  # sent to itself, 10**9 bytes a second
    disk_mbps: Measured = 0.0  # written and synced, 10**6 bytes a second
    clock_s: ClockSeconds = 0.0  # its wall clock less the manager's
    versions: Annotated[dict[Name, Name], Some] = {}
    elapsed_s: Seconds = 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A collective between two nodes. They meet at the store of the first node, under `name`."""

    peer: Name  # the other node
    name: Name  # unique in the job
    first: bool  # this node's ranks come first
    store_host: Name
    store_port: Port
    store_key: Name = ""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Result of a trial, measured by one of its two nodes."""

    peer: Name
    ok: bool
    cause: Line = ""  # reason of the failure
    gbps: Measured = 0.0  # received by this node, 10**9 bytes a second
    latency_s: Seconds = 0.0  # latency of the smallest collective
    elapsed_s: Seconds = 0.0


class CheckOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to one agent: check the node itself (`own`), and its links to others (`trials`).

    An order with an older number changes nothing.
    """

    job_id: Name
    number: Counter
    own: bool
    trials: Annotated[tuple[Trial, ...], Some]
    timeout_s: Seconds
    clock_s: ClockSeconds  # the manager's wall clock


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the newest order so far: part of an agent's report. `done`: no part of the order is under way."""

    number: Counter
    done: bool = False
    own: Own | None = None
    trials: Annotated[tuple[TrialResult, ...], Some] = ()


class CheckState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """State of a node's check: part of an agent's report. An agent that only helps to check others has one too."""

    wants: bool = False  # the node must be checked before it may train
    cleared: bool = False  # the node was checked, and may train
    strict: bool = False  # slow nodes are excluded too
    ready: bool = False  # its check processes can start at once
    report: CheckReport | None = None


class Cleared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node may train."""

    note: Line = ""  # a finding about the node that did not exclude it


class Dismissed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node must leave the job. The reason begins with the words that people search for."""

    reason: Line


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Operator to manager: check all nodes, and send the findings. Repeated with the same key until they arrive."""

    job_id: Name
    key: Name


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to operator: the findings as JSON, empty until they are known. `refusal`: why there can be none."""

    key: Name
    document: Document = ""
    refusal: Line = ""
