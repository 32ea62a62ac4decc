"""A training whose set-up makes shared memory under a fixed name; rank 1 kills itself once."""

import json
import os
import signal
from multiprocessing.shared_memory import SharedMemory

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank

SEGMENT = SharedMemory(name=f"{PLAN['name']}_{rank()}", create=True, size=1 << 16)
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
MODEL = DistributedDataParallel(nn.Linear(8, 2))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=1e-3)
STATE = taskd.TrainState(seed=1, model=MODEL, optimizer=OPTIMIZER)


@taskd.resilient(STATE)
def train() -> None:
    while STATE.step < PLAN["steps"]:
        if rank() == 1 and STATE.step == 3 and not (FOLDER / "killed").exists():
            (FOLDER / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        OPTIMIZER.zero_grad()
        MODEL(torch.ones(4, 8)).square().mean().backward()
        OPTIMIZER.step()
        STATE.commit()


train()
SEGMENT.close()
SEGMENT.unlink()
note(f"result-{rank()}", json.dumps({"step": STATE.step}))
dist.destroy_process_group()
