"""What travels when nodes are checked: the order, and what a node has found of itself and of its way to another.

Rules:

1. Nodes are named by their agent's id. A node has as many check processes for each trial as it has local ranks.
2. A report says what was measured; whether that is slow is decided by `core.nodecheck`, which sees all nodes.
3. Rates are of the slowest local rank. 0.0: not measured.
"""

import msgspec


class Own(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a node has found of itself, without another."""

    ok: bool
    cause: str = ""  # of a failure; with `ok`, what may have made it slower
    compute_tflops: float = 0.0  # matrix product, in units of 10**12 operations a second
    memory_gbps: float = 0.0  # copied, 10**9 bytes a second
    loopback_gbps: float = 0.0  # sent to itself, 10**9 bytes a second
    disk_mbps: float = 0.0  # written and synced, 10**6 bytes a second
    clock_s: float = 0.0  # its wall clock less the manager's
    versions: dict[str, str] = {}
    elapsed_s: float = 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A collective between two nodes. They meet at the store of the first, under `name`."""

    peer: str  # the other node
    name: str  # unique in the job
    first: bool  # this node's ranks come first
    store_host: str
    store_port: int


class TrialResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How it went, seen from one of the two."""

    peer: str
    ok: bool
    cause: str = ""  # of a failure
    gbps: float = 0.0  # bytes that this node has received a second, 10**9
    latency_s: float = 0.0  # of the smallest collective
    elapsed_s: float = 0.0


class Examine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to one agent: check yourself (`own`), and your way to others. One of an older number changes nothing."""

    job_id: str
    number: int
    own: bool
    trials: tuple[Trial, ...]
    timeout_s: float
    clock_s: float  # the manager's wall clock


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest order has led to, so far: part of an agent's report. `done`: nothing of it is under way."""

    number: int
    done: bool = False
    own: Own | None = None
    trials: tuple[TrialResult, ...] = ()


class CheckState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a node stands with its check: part of an agent's report. An agent that is asked to help has one too."""

    wants: bool = False  # it is to be checked before it may train
    cleared: bool = False  # it was, and may
    strict: bool = False  # slow nodes are to be excluded too
    ready: bool = False  # its check processes could begin at once
    examined: Examined | None = None


class Cleared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node may train."""

    note: str = ""  # what was found of it all the same


class Dismissed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent: its node is to leave the job. The reason begins with the words that people search for."""

    reason: str


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Operator to manager: check all nodes, and say what is found. Asked again with the same key until it is said."""

    job_id: str
    key: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to operator: what was found, as JSON; nothing while it is not known, or why it cannot be."""

    key: str
    document: str = ""
    refusal: str = ""
