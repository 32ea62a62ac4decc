"""What is recovered in place and not to the last bit is told beforehand, with its line."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import wrappers
from taskd.adaptors.training.parts import Parts
from taskd.adaptors.training.refusals import tell_inexact

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("norm", "told"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm1d(3, track_running_stats=False), False),
        (nn.LayerNorm(3), False),
    ],
    ids=["own statistics", "none", "no such layer"],
)
@pytest.mark.usefixtures("alone")
def test_statistics_that_one_rank_alone_has(norm: nn.Module, caplog: pytest.LogCaptureFixture, *, told: bool) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), norm))
    tell_inexact(Parts({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}))
    assert ("has 1 BatchNorm layers" in caplog.text) is told
    assert (wrappers.line_of(model) in caplog.text) is told
