"""Cost of one `state.commit()` alone: the count, the random numbers and the position file, without the step.

Run as `python -m benchmarks.commit`. The state is that of a small model with AdamW, with numpy imported, and with a
position file in shared memory. Commits are timed one by one. Before each, a step is made and each generator is drawn
from, so every state is new. The first commits are left out: taskd determines the kind of script in them.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

_FIRST = 20


def commit_us(commits: int = 5000) -> float:
    """Return the median duration of `commits` calls of `TrainState.commit`, in microseconds."""
    import numpy as np
    import torch

    from taskd.adaptors.training.state import TrainState

    model, rows = torch.nn.Linear(8, 8), torch.ones(1, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainState(model=model, optimizer=optimizer)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        state._recovery.attach(f"{directory}/position")
        durations_ns = []
        for _ in range(_FIRST + commits):
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
            random.random()
            np.random.random()
            torch.rand(1)
            begun_ns = time.perf_counter_ns()
            state.commit()
            durations_ns.append(time.perf_counter_ns() - begun_ns)
    return statistics.median(durations_ns[_FIRST:]) / 1000


if __name__ == "__main__":
    print(f"{commit_us():.1f} us per commit")
