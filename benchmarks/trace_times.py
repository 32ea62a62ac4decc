"""How long each part of a recovery takes: measured on a small job, plus what a large one is assumed to add.

Rules:

1. A time is `measured` plus `added`; `data/phase_times.csv` has both, each with its source.
2. `added` is that of 16,384 GPUs. What grows with the number of GPUs is scaled by it, linearly. What does not grow is
   taken as it is.
3. Every value can be set on the command line (`--set name=value`), and is echoed with the result.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.trace_faults import DATA

LARGE = 16_384
_POWER = {"": 0, "linear": 1}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, shares and counts of the model; what each is and where from is said in `data/phase_times.csv`."""

    step_s: float
    notice_s: float
    pause_s: float
    manager_s: float
    warm_s: float
    cold_s: float
    rebuild_s: float
    state_gb: float
    link_gb_per_s: float
    first_step_s: float
    overhead_share: float
    spare_back_s: float
    cluster_s: float
    replicas: float
    checkpoint_stall_s: float
    checkpoint_write_s: float
    restart_s: float
    manual_s: float

    @property
    def restore_s(self) -> float:
        """A newcomer receives its state; each of its GPUs over its own link."""
        return self.state_gb / self.link_gb_per_s

    def checkpoint_interval_s(self, mtbf_s: float) -> float:
        """Young's optimum, and no shorter than a checkpoint takes to be written in the background."""
        return max(math.sqrt(2 * self.checkpoint_stall_s * mtbf_s), self.checkpoint_write_s)


def read_times(gpus: int, changed: Mapping[str, float]) -> Times:
    """The times of a job of so many GPUs, but for those that were set.

    Raises:
        ValueError: a name that was set is not among them.

    """
    with (DATA / "phase_times.csv").open() as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    values = {
        line["name"]: float(line["measured"] or 0) + float(line["added"] or 0) * (gpus / LARGE) ** _POWER[line["grows"]]
        for line in lines
    }
    unknown = set(changed) - set(values)
    if unknown:
        raise ValueError(f"found {', '.join(sorted(unknown))}, expected one of {', '.join(values)}")
    return Times(**{**values, **changed})
