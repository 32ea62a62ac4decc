"""The black box records the wait for batches, and their size."""

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from taskd.adaptors.training.data.loading import size
from taskd.runtime.box.blackbox import Box
from tests.launch import Launcher

PROGRAM = Path(__file__).with_name("loading_program.py")


@pytest.fixture
def box(run_dir: Path) -> Iterator[Box]:
    made = Box.create(run_dir / "box")
    yield made
    made.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_gives_is_put_down_at_each_commit(box: Box, launcher: Launcher, workers: int) -> None:
    """With workers, it is the wait for them. Fetches by a thread or a worker are no wait of the training."""
    process = launcher.start(["python", PROGRAM, box.path, str(workers)])
    assert process.wait(60) == 0, launcher.output(process)
    waited_s = float(launcher.output(process).splitlines()[-1])
    said = box.read()
    assert (said.step, said.work) == (4, 10 + 20 + 30 + 40), "what came after the commit is not of its steps"
    assert 0.5 * waited_s < said.data_ns / 1e9 <= waited_s
    assert said.data_since_ns == 0, "nor does it wait when the loader has failed"


def test_the_size_of_a_batch() -> None:
    ids = torch.zeros(4, 128, dtype=torch.int64)
    assert size(ids) == 512
    assert size({"ids": ids, "labels": torch.zeros(4)}) == 512
    assert size([torch.zeros(4, 3, 8, 8), torch.zeros(4)]) == 768
    assert size(({"text": {"ids": ids}}, "name")) == 512
    assert size({"path": "a" * 1000, "count": 3}) == 0
    assert size(numpy.zeros(7)) == 0
    assert size([torch.zeros(1)] * 16 + [ids]) == 1, "no more than the first parts are looked at"
