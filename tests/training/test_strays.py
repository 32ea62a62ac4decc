"""A loader that a script trains from, but has not given to its state, is reported with its line."""

import inspect
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from taskd.adaptors.training.data.strays import Strays
from taskd.adaptors.training.state import TrainState

NUMBERS: Any = range(6)


def test_the_loader_that_is_trained_from_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A loader that was only inspected, or read to its end, is not reported."""
    strays = Strays()
    strays.watch()
    loader = DataLoader(NUMBERS)
    next(iter(loader))
    assert len(list(loader)) == len(NUMBERS)
    for number, _ in enumerate(loader):
        if number == 1:
            strays.report()
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_code.co_firstlineno + 7
    (record,) = caplog.records
    assert f"the DataLoader iterated at {__file__}:{line} is not a part" in record.getMessage()


def test_a_part_is_not_told_of_and_torch_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    own = _BaseDataLoaderIter.__init__
    strays = Strays()
    strays.watch()
    parameter = torch.nn.Parameter(torch.zeros(1))
    state = TrainState(optimizer=torch.optim.SGD([parameter]), loader=DataLoader(NUMBERS))
    for _ in state.loader:
        strays.report()
    assert not caplog.records
    assert _BaseDataLoaderIter.__init__ is own
    strays.watch()
    strays.stop()
    assert _BaseDataLoaderIter.__init__ is own
