"""One rank of a job whose state is copied, or digested to be compared. Its steps have a given length and mostly sleep.

Arguments: the folder for the results, steps, milliseconds a step, MiB of the state, `backup_every` (-1: its default),
and `every` of the verification (0: none).
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import taskd
from taskd.adaptors.training import runtime as runtimes

_WIDTH = 512
_STATES = 3
"""Numbers for each parameter: Adam has two beside the parameter itself."""
_SETTLED = 10
"""First steps, which do not count."""


def main() -> None:
    """Train, and write the time of each step."""
    folder, steps, step_ms, mib, every, verify_every = Path(sys.argv[1]), *map(int, sys.argv[2:])
    dist.init_process_group("gloo")
    layers = max(1, round((mib << 20) / (4 * _STATES * _WIDTH * _WIDTH)))
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    verify = "replicas" if verify_every else None
    backup_every = None if every < 0 else every
    state = taskd.TrainState(
        model=model, optimizer=optimizer, seed=0, backup_every=backup_every, verify=verify, every=verify_every or None
    )
    took: list[float] = []
    found: dict[str, object] = {}

    @taskd.resilient(state)
    def train() -> None:
        for _ in range(state.step, steps):
            begun_s = time.monotonic()
            optimizer.zero_grad()
            model(torch.randn(1, _WIDTH)).sum().backward()
            dist.all_reduce(torch.zeros(1))
            time.sleep(max(0.0, step_ms / 1e3 - (time.monotonic() - begun_s)))
            optimizer.step()
            state.commit()
            took.append(time.monotonic() - begun_s)
        running = runtimes.current()
        assert running is not None
        assert running.session is not None
        tally = running.session.backups.tally
        verifier = state._recovery.replicas.verifier
        if verifier is not None:
            found.update(verify_stall_s=verifier.stall_s, digests=len(verifier.digests))
        found.update(whole=tally.whole, skipped=tally.skipped, stall_s=tally.stall_s, size_bytes=tally.size_bytes)

    train()
    found["steps_s"] = took[_SETTLED:]
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


main()
