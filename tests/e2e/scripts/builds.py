"""A training in which each rank loads an extension as torch does (`_jit_compile`), but without the compiler.

It loads in the set-up, or in the step `at` before the forward pass. If the plan names a rank `alone`, only it loads.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

EXTENSION = FOLDER / "ext" / "ext.so"
_versions: set[str] = set()


def load() -> float:
    """Build the extension, or wait for its build, and load it."""
    from torch.utils.file_baton import FileBaton

    changed = EXTENSION.name not in _versions  # this process has not built it, or waited for it, as far as torch knows
    _versions.add(EXTENSION.name)
    baton = FileBaton(str(EXTENSION.with_name("lock")))
    if baton.try_acquire():
        try:
            if changed:
                reach("building")
                EXTENSION.write_text("0.5")
        finally:
            baton.release()
    else:
        note(f"waits-{rank()}", str(os.getpid()))
        baton.wait()
    if not EXTENSION.exists():
        raise ImportError(f"{EXTENSION} was not built")
    return float(EXTENSION.read_text())


def main() -> None:
    EXTENSION.parent.mkdir(exist_ok=True)
    reach("setup")
    factor = 1.0 if "at" in PLAN or PLAN.get("none") else load()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = taskd.TrainState(model=model, optimizer=optimizer)

    def train() -> None:
        while state.step < PLAN["steps"]:
            reach(state.step + 1, "begin")
            scale = load() if state.step + 1 == PLAN.get("at") and PLAN.get("alone") in (None, rank()) else factor
            optimizer.zero_grad()
            model(torch.full((3, 4), scale * (rank() + state.step))).square().mean().backward()
            optimizer.step()
            state.commit()

    (taskd.resilient(state)(train) if PLAN.get("sdk") else train)()
    weights = network.weight.detach().numpy().tobytes().hex()
    names = sorted(name for name in sys.modules if name.endswith(("baton", "batons", "lockfile", "cpp_extension")))
    note(f"result-{rank()}", json.dumps({"weights": weights, "pid": os.getpid(), "modules": names}))
    dist.barrier()
    os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups


main()
