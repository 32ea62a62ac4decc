"""Time of a run by columns: every second is in exactly one of them.

Columns: `useful` is time on steps that are kept. `redone` was training whose steps were lost afterwards. `degraded` is
training that a world with fewer replicas lacks. `checkpoint` and `overhead` are time that writing checkpoints and
taskd's own hooks take from training. The others are phases without training: `detect`, `replace` (pause and new
processes), `wait_node`, `rebuild` (groups and state), `first_step` (its additional time), `restart` (of the whole job),
`manual`.

The two ratios are defined in docs/goodput.md.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks.trace_times import Times

TRAIN = "train"
WAIT_NODE = "wait_node"
WASTE = (
    "redone", "detect", "replace", WAIT_NODE, "rebuild", "first_step", "restart", "manual", "degraded", "checkpoint",
    "overhead",
)  # fmt: skip


@dataclass(slots=True)
class Meter:
    """Sums of the time of one run, for each cause and each column."""

    times: Times
    interval_s: float
    """Training time between two checkpoints."""
    overhead_share: float
    mode: str = TRAIN
    cause: str = ""
    speed: float = 1.0
    since_s: float = 0.0
    useful_s: float = 0.0
    loaded_s: float = 0.0
    """Useful time of the checkpoint that was loaded last: it cannot be lost."""
    waste_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    causes_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def checkpoint_share(self) -> float:
        """Share of training during which a checkpoint holds it up."""
        return self.times.checkpoint_stall_s / (self.times.checkpoint_stall_s + self.interval_s)

    @property
    def share_of_training(self) -> float:
        """Useful share of a second of training at full speed."""
        return (1 - self.checkpoint_share) * (1 - self.overhead_share)

    def pass_to(self, now_s: float) -> None:
        """Book the time since the last call, under the present mode."""
        length_s, self.since_s = now_s - self.since_s, now_s
        if self.mode != TRAIN:
            self._waste(self.mode, length_s, self.cause)
            return
        stalled_s = length_s * self.checkpoint_share
        idle_s = (length_s - stalled_s) * (1 - self.speed)
        hooks_s = (length_s - stalled_s - idle_s) * self.overhead_share
        self._waste("checkpoint", stalled_s)
        self._waste("degraded", idle_s, "fewer replicas" if idle_s else "")
        self._waste("overhead", hooks_s)
        self.useful_s += length_s - stalled_s - idle_s - hooks_s

    def switch(self, now_s: float, mode: str, cause: str, speed: float) -> None:
        """Book the time from now on under another mode."""
        self.pass_to(now_s)
        self.mode, self.cause, self.speed = mode, cause, speed

    def lose_to(self, kept_s: float, cause: str) -> None:
        """Book the useful time beyond `kept_s` as redone: its steps are lost."""
        lost_s = max(0.0, self.useful_s - kept_s)
        self.useful_s -= lost_s
        self._waste("redone", lost_s, cause)

    def roll_back(self, kept_s: float, cause: str) -> None:
        """Continue the job from a checkpoint with `kept_s` of useful time."""
        self.lose_to(kept_s, cause)
        self.loaded_s = min(kept_s, self.useful_s)

    @property
    def steps(self) -> int:
        """Number of committed steps."""
        return math.floor(self.useful_s / self.times.step_s + 1e-6)

    @property
    def step_kept_s(self) -> float:
        """Useful time up to the last whole step."""
        return self.steps * self.times.step_s

    @property
    def checkpoint_kept_s(self) -> float:
        """Useful time up to the last complete checkpoint: it is on disk some time after its step."""
        complete_s = max(0.0, self.useful_s - self.times.checkpoint_write_s)
        at_s = math.floor(complete_s / self.interval_s) * self.interval_s
        return max(self.loaded_s, math.floor(at_s / self.times.step_s) * self.times.step_s)

    @property
    def goodput(self) -> float:
        """Runtime goodput: useful time divided by the time in which the job had its nodes."""
        return self.useful_s / (self.since_s - self.waste_s[WAIT_NODE])

    @property
    def ettr(self) -> float:
        """Useful time divided by the whole time, waiting for nodes included."""
        return self.useful_s / self.since_s

    def _waste(self, column: str, length_s: float, cause: str = "") -> None:
        if length_s:
            self.waste_s[column] += length_s
            self.causes_s[cause or f"({column})"] += length_s
