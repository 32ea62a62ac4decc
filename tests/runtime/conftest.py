"""An agent's local server and its ear; black boxes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.sockets import LocalServer
from tests.runtime.local import Ear


@pytest.fixture
def server(run_dir: Path) -> Iterator[LocalServer]:
    made = LocalServer(run_dir / "agent.sock")
    yield made
    made.close()


@pytest.fixture
def ear(server: LocalServer) -> Ear:
    return Ear(server)
