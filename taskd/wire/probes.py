"""Order to one process of a node check, and its answer. A node's check has one process for each local rank.

Rules:

1. A process carries out one order, within its time, and nothing else afterwards.
2. An answer is about this process alone. `core.nodecheck.probes` merges the answers of a node.
"""

import msgspec

from taskd.wire.bounds import Amount, MaybeIndex, Name, OfLocal, Raw, Seconds
from taskd.wire.checks import Own, Trial, TrialResult
from taskd.wire.kinds import LocalRank


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order to check this node (`own`), and then its link to another node, if there is a `trial`."""

    own: bool = False
    trial: Trial | None = None
    local_rank: OfLocal = LocalRank(0)
    local_world_size: Amount = 1
    run_dir: Raw = b""  # directory whose disk is checked; empty: no check of the disk
    timeout_s: Seconds = 30.0  # limit for the whole order
    device: Name = ""  # cpu, cuda or npu; empty: the accelerator if torch finds one, else cpu
    device_index: MaybeIndex = -1  # index of the device; negative: the local rank
    address: Name = ""  # the node's address for the loopback probe; empty: as gloo and NCCL choose it


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of one process. The requested parts are never None, also after a failure. Each `cause` is its own."""

    local_rank: OfLocal
    own: Own | None = None
    trial: TrialResult | None = None
