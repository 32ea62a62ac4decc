"""A loader that is part of the state can be iterated again without a trace in the global generator."""

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd


def test_iterating_a_loader_of_the_state_draws_nothing() -> None:
    loader = StatefulDataLoader([1, 2, 3], batch_size=1)
    before = torch.default_generator.get_state()
    iter(loader)
    assert not torch.equal(torch.default_generator.get_state(), before), "torchdata has changed: the part is not needed"
    parameter = torch.nn.Parameter(torch.zeros(1))
    taskd.TrainState(optimizer=torch.optim.SGD([parameter]), loader=loader)
    before = torch.default_generator.get_state()
    assert [batch.item() for batch in loader] == [1, 2, 3]
    assert torch.equal(torch.default_generator.get_state(), before)
