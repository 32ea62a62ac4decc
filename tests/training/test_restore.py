"""State from a donor to receivers, between real processes; and bucket layouts imposed on a wrapper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.launch import Launcher
from tests.thorough import everyday
from tests.training.job import run_ranks

PROGRAM = Path(__file__).with_name("restore_program.py")


CASES = ["everybody", "some", "survivors", "misfit", "flipped", "behind", "layouts", "elsewhere"]


@pytest.fixture
def port() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


@pytest.mark.parametrize("case", everyday(CASES, "everybody", "survivors", "layouts"))
def test_restore(launcher: Launcher, port: int, case: str) -> None:
    statuses, output = run_ranks(launcher, 4, PROGRAM, case, "{rank}", str(port))
    assert statuses == [0] * 4, output
