"""Duration of each part of a recovery: measured on a small job, plus the assumed addition of a large one.

Rules:

1. A time is `measured` plus `added`; `data/phase_times.csv` has both, each with its source.
2. `added` is for 16,384 GPUs. An addition that grows with the number of GPUs is scaled linearly. The others are taken
   unchanged.
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
    """Seconds, shares and counts of the model. `data/phase_times.csv` has the meaning and the source of each."""

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
        """Time for a newcomer to receive its state, each of its GPUs over its own link."""
        return self.state_gb / self.link_gb_per_s

    def checkpoint_interval_s(self, mtbf_s: float) -> float:
        """Return Young's optimum, or the time to write a checkpoint in the background if that is longer."""
        return max(math.sqrt(2 * self.checkpoint_stall_s * mtbf_s), self.checkpoint_write_s)


def read_times(gpus: int, changed: Mapping[str, float]) -> Times:
    """Return the times of a job of `gpus` GPUs, with the values of `changed` in their places.

    Raises:
        ValueError: a name in `changed` is not one of the times.

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
