"""A job whose ranks meet in played kernels of NCCL. Only events for NCCL's profiler plugin show their work.

Ranks come to a step's kernel and leave it when all have come. The victim is slow from the step `at` on. Or it waits in
that step for its device, which does not come to the kernel before a process writes to the FIFO `device`.
"""

import mmap
import os
import struct
import time
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, rank
from tests.nccl import Communicator, Plugin

OWN_S: Final = 0.02
MORE_S: Final = 0.03
LOOK_S: Final = 0.0005
WORD: Final = struct.Struct("q")


class Meeting:
    """Step of each rank's last arrival, and the last step of all, in a file that all ranks map."""

    def __init__(self, ranks: int) -> None:
        with (FOLDER / "arrived").open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), (ranks + 1) * WORD.size)
        self._ranks = ranks

    def arrive(self, own: int, step: int) -> bool:
        """Wait for the others. Return whether there is another step."""
        if own == 0 and (FOLDER / "stop").exists():
            WORD.pack_into(self._words, self._ranks * WORD.size, step)
        WORD.pack_into(self._words, own * WORD.size, step)
        while min(self._word(other) for other in range(self._ranks)) < step:
            time.sleep(LOOK_S)
        return self._word(self._ranks) != step

    def _word(self, place: int) -> int:
        return int(WORD.unpack_from(self._words, place * WORD.size)[0])


dist.init_process_group("gloo")
model = nn.Linear(2, 2)
state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
meeting = Meeting(dist.get_world_size())
plugin = os.environ.get("NCCL_PROFILER_PLUGIN")
communicator = Communicator(Plugin(plugin)) if plugin else None


@taskd.resilient(state)
def train() -> None:
    more = True
    while more:
        struck = rank() == PLAN["victim"] and state.step >= PLAN["at"]
        time.sleep(OWN_S + (MORE_S if struck and PLAN["fault"] == "slow" else 0))
        if struck and PLAN["fault"] == "device" and state.step == PLAN["at"]:
            (FOLDER / "device").read_bytes()
        kernel = communicator.start() if communicator else None
        more = meeting.arrive(rank(), state.step + 1)
        if communicator:
            communicator.stop(kernel)
        state.commit()


train()
dist.destroy_process_group()
