"""Network and data of all these trainings, and the timing of their steps.

Rules:

1. A step is a real step of a small network. Its forward pass includes a fixed processor time, in which memory is gone
   through. This time stands for the work of an accelerator, and empties the caches as real work does.
2. A step lasts from one forward pass to the next. Its *rest* is compared, without the fixed time: the work of the
   library and of taskd.
3. A turn's first steps do not count: libraries set things up in them, and taskd determines the kind of training.
"""

import time
from dataclasses import dataclass, field

import torch
from torch import nn

FEATURES, KINDS, ROWS = 32, 8, 8
LEFT_OUT = 8
_LAYERS, _CHUNK, _CHUNKS = 12, 1 << 15, 256


class Spin:
    """A fixed processor time, spent by going through memory."""

    def __init__(self) -> None:
        self.length_s = 0.0
        self._memory = torch.zeros(_CHUNKS, _CHUNK)
        self._next = 0

    def __call__(self) -> None:
        """Spend the time."""
        end_s = time.thread_time() + self.length_s
        while time.thread_time() < end_s:
            self._memory[self._next % _CHUNKS].add_(1)
            self._next += 1


@dataclass
class Turn:
    """Times of a turn's steps in microseconds: wall clock and processor without the spin, and the whole step."""

    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)


class Stopwatch:
    """Reader of the clocks around the spin of each forward pass."""

    def __init__(self) -> None:
        self.spin = Spin()
        self._turn: Turn | None = None
        self._last: tuple[int, int, int] | None = None
        self._seen = 0

    def begin(self) -> Turn:
        """Begin a turn: the next steps belong to it."""
        self._turn, self._last, self._seen = Turn(), None, 0
        return self._turn

    def step(self) -> None:
        """Record the step that ends with this forward pass, and spin."""
        wall_ns, cpu_ns, turn, last = time.perf_counter_ns(), time.thread_time_ns(), self._turn, self._last
        self._seen += 1
        if turn is not None and last is not None and self._seen > LEFT_OUT:
            turn.wall_us.append((wall_ns - last[1]) / 1000)
            turn.cpu_us.append((cpu_ns - last[2]) / 1000)
            turn.step_us.append((wall_ns - last[0]) / 1000)
        self.spin()
        self._last = wall_ns, time.perf_counter_ns(), time.thread_time_ns()


class Network(nn.Module):
    """A few layers, whose forward pass is a step's work."""

    watch: Stopwatch

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(_LAYERS)])
        self.out = nn.Linear(FEATURES, KINDS)
        vars(self)["watch"] = watch

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits; in training, time the step first."""
        if self.training:
            self.watch.step()
        for layer in self.layers:
            rows = rows + torch.tanh(layer(rows))
        return self.out(rows)


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Dataset of numbers that are made in advance, enough for `steps` steps."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(steps * ROWS, FEATURES, generator=generator)
        self.kinds = torch.randint(KINDS, (steps * ROWS,), generator=generator)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], self.kinds[index]
