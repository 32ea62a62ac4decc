"""What one process of a node check is told to do, and what it answers. A node's check has one for each local rank.

Rules:

1. An order is done once, within its time, by a process that does nothing else afterwards.
2. An answer is of this process alone; `core.nodecheck.probes` makes one of those of a node.
"""

import msgspec

from taskd.wire.bounds import Amount, MaybeIndex, Name, OfLocal, Raw, Seconds
from taskd.wire.checks import Own, Trial, TrialResult
from taskd.wire.kinds import LocalRank


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Check this node (`own`), then, if there is a trial, the way to another one."""

    own: bool = False
    trial: Trial | None = None
    local_rank: OfLocal = LocalRank(0)
    local_world_size: Amount = 1
    run_dir: Raw = b""  # where the disk is tried; nowhere if empty
    timeout_s: Seconds = 30.0  # for all of it
    device: Name = ""  # cpu, cuda or npu; empty: the accelerator if torch finds one, else cpu
    device_index: MaybeIndex = -1  # of it; negative: the local rank
    address: Name = ""  # by which the node is known; empty: as gloo and NCCL find it


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for is not None, whatever happened. Each `cause` is of this process."""

    local_rank: OfLocal
    own: Own | None = None
    trial: TrialResult | None = None
