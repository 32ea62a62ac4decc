"""A training with a defect that its first steps show: a state that cannot be loaded, or state outside of the state."""

import dataclasses
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach


@dataclasses.dataclass
class Best:
    """A type of the script's own."""

    loss: float


class Stopper:
    """A part of the state."""

    def __init__(self) -> None:
        self.best = Best(1.0)

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best if PLAN["shape"] == "own_type" else self.best.loss}

    def load_state_dict(self, state: dict[str, object]) -> None:
        raise AssertionError("nobody takes it over")


class Average:
    """An average of the weights that is in no state."""

    def __init__(self, module: nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        for name, value in module.named_parameters():
            self.shadow[name].mul_(0.9).add_(value, alpha=0.1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = Average(network)
    state = taskd.TrainState(model=model, optimizer=optimizer, replicated={"stopper": Stopper()}, seed=1)

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            step = state.step + 1
            reach(step, "begin")
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            if PLAN["shape"] == "average":
                average.update(network)
            state.commit()
        dist.barrier()

    train()
    shadow = sum(float(value.double().sum()) for value in average.shadow.values())
    note(f"result-{rank()}", json.dumps([float(network.weight.detach().double().sum()), shadow]))
    dist.destroy_process_group()


main()
