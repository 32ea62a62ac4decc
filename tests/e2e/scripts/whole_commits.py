"""Train without a fault. Rank 0 records how many of the last 100 commits went through Python."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from taskd.adaptors.training.recovery import StateRecovery
from tests.e2e.scripts.points import note, rank

STEPS = 220
"""The self-check inspects each commit in the first 80."""
commit = StateRecovery.commit
whole: list[int] = []


def counted(self: StateRecovery, loss: float | torch.Tensor | None = None) -> None:
    """Count this commit, and commit."""
    whole.append(self.step)
    commit(self, loss)


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    state = taskd.TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))

    @taskd.resilient(state)
    def train() -> None:
        while state.step < STEPS:
            model(torch.randn(64, 64)).square().mean().backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.commit()

    train()
    if rank() == 0:
        note("whole", str(sum(step >= STEPS - 100 for step in whole)))


StateRecovery.commit = counted  # type: ignore[method-assign]
main()
