"""A rehearsal's shorter loaders: they leave over as many batches as before, and change nothing else."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from taskd.adaptors.rehearsal.shorter import shorten
from taskd.adaptors.training.state import TrainState


def state_of(loader: Any) -> TrainState:
    model = torch.nn.Linear(1, 1)
    return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader)


@pytest.mark.parametrize(("samples", "batches"), [(400, 16), (404, 17), (148, 13), (80, 8), (32, 8), (20, 5)])
@pytest.mark.parametrize("distributed", [True, False])
def test_the_rest_by_twelve_stays(samples: int, batches: int, distributed: bool) -> None:
    rows: Any = torch.arange(samples)
    sampler: Any = DistributedSampler(rows, 1, 0) if distributed else None
    loader = DataLoader(rows, batch_size=4, sampler=sampler, shuffle=None if distributed else True)
    whole = samples // 4
    state = state_of(loader)
    told = shorten(state._recovery.parts)
    assert bool(told) is (batches < whole)
    assert len(loader) == batches
    assert (whole - batches) % 12 == 0
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        assert len(list(loader)) == batches
    assert loader.batch_sampler.batch_size == 4  # type: ignore[union-attr]


def test_streams_and_single_samples_stay_as_they_are() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(400))

    for loader in (DataLoader(Stream(), batch_size=4), DataLoader(torch.arange(400), batch_size=None)):  # type: ignore[arg-type]
        assert shorten(state_of(loader)._recovery.parts) == []
        assert len(list(loader)) in (100, 400)
