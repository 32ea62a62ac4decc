"""An agent's local server and its ear; black boxes."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.agent.sockets import LocalServer
from taskd.runtime.box.blackbox import Box
from tests.launch import Launcher
from tests.runtime.local import Ear
from tests.runtime.watched import Rank, Start


@pytest.fixture
def server(run_dir: Path) -> Iterator[LocalServer]:
    made = LocalServer(run_dir / "agent.sock")
    yield made
    made.close()


@pytest.fixture
def ear(server: LocalServer) -> Ear:
    return Ear(server)


@pytest.fixture
def box(leak_mark: str) -> Iterator[Box]:
    made = Box.create(Path("/dev/shm") / f"taskd-test-{uuid.uuid4().hex}")
    yield made
    made.close()
    made.unlink()


@pytest.fixture
def start(launcher: Launcher, box: Box) -> Start:
    return lambda body, before="": Rank(launcher, box, body, before)
