"""Fixtures: an agent's local server with its receiver, black boxes, an agent between a scripted manager and a host."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.config.agent import AgentConfig
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.sockets import LocalServer
from taskd.runtime.box.blackbox import Box
from taskd.runtime.links.links import ManagerSocket
from taskd.runtime.links.loopback import secured
from tests.launch import Launcher
from tests.runtime.host import Host
from tests.runtime.local import Ear
from tests.runtime.scripted import IDENTITY, STORE, ScriptedManager
from tests.runtime.watched import Rank, Start
from tests.wire.peers import NONE


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


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture
def manager(run_dir: Path) -> Iterator[ScriptedManager]:
    listen = Address(LOOPBACK, 0)
    with ManagerSocket(listen, secured(NONE, listen, run_dir)) as socket:
        yield ScriptedManager(socket)


@pytest.fixture
def make(run_dir: Path, manager: ScriptedManager) -> Iterator[Callable[..., NodeAgent]]:
    made: list[NodeAgent] = []

    def agent(**settings: str) -> NodeAgent:
        env = {
            "TASKD_MANAGER": str(manager.socket.address),
            "TASKD_RUN_DIR": str(run_dir),
            "TASKD_STANDBY": "0",
            "TASKD_HEARTBEAT_S": "60",
            **settings,
        }
        made.append(NodeAgent(AgentConfig.from_environment(env), lambda: STORE))
        for local_rank in Host.local_ranks:
            made[-1].worker_environment(local_rank)
        return made[-1]

    yield agent
    for one in made:
        one.stopping()
        one.stop()


@pytest.fixture
def agent(make: Callable[..., NodeAgent], host: Host) -> NodeAgent:
    made = make(TASKD_HEARTBEAT_S="0.5")
    made.started(host, IDENTITY)
    return made
