"""Fixtures for attacks on checkpoints. Descriptors of torch and libuv are opened before the first leak census."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.training.checkpoint_attack import Attack


@pytest.fixture(autouse=True, scope="session")
def one_off_descriptors() -> None:
    """Make and drop a store: libuv keeps a signal pipe for the rest of the process."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def checkpoints_as_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shelf = tmp_path_factory.mktemp("written") / "shelf"
    Attack.write(shelf)
    return shelf


@pytest.fixture
def attack(checkpoints_as_written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Attack:
    return Attack(Path(shutil.copytree(checkpoints_as_written, tmp_path / "shelf")), caplog)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """Yield a path that exists only if code of a checkpoint has run."""
    yield tmp_path / "struck"
    assert not (tmp_path / "struck").exists()
