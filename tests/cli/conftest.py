"""The command line as a user calls it, and boxes of real processes."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.runtime.box.blackbox import Box
from tests.cli.chaos import ChaosNode
from tests.cli.jobs import Records
from tests.launch import Launcher
from tests.shim.armed import armed, plain, until

Told = tuple[int, str]
Blackbox = Callable[..., Told]
PROGRAMS = Path(__file__).with_name("programs")
WAITS = "time.sleep(60)"


@pytest.fixture
def blackbox(launcher: Launcher) -> Blackbox:
    """Return a function that calls `taskd blackbox` in a process of its own."""

    def call(*words: object, **env: str | None) -> Told:
        command = ["python", "-m", "taskd", "blackbox", *map(str, words)]
        return launcher.run(command, env={**plain(), **env})

    return call


@pytest.fixture
def document(blackbox: Blackbox) -> Callable[..., dict[str, Any]]:
    """Return the same function with JSON output."""

    def call(*words: object) -> dict[str, Any]:
        status, output = blackbox(*words, "--json")
        assert status == 0, output
        return json.loads(output)

    return call


@pytest.fixture
def agent_dir(leak_mark: str) -> Iterator[Path]:
    """Yield a directory like an agent's. Its lock keeps agents of other tests from sweeping it."""
    path = Path("/dev/shm") / f"taskd-{os.getpid()}-{leak_mark[:8]}"
    path.mkdir(mode=0o700)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield path
    os.close(lock)
    shutil.rmtree(path)


@pytest.fixture
def start(launcher: Launcher, agent_dir: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that starts a rank with `body`, and returns its process and its open box."""
    boxes: list[Box] = []

    def begin(body: str = WAITS, *, gate: bool = False) -> Any:
        box = Box.create(agent_dir / f"box-3-{len(boxes)}")
        boxes.append(box)
        command: list[str | Path] = ["python", PROGRAMS / "rank.py", box.path, body]
        worker = launcher.start(command, env=armed(box.path) if gate else plain())
        until(lambda: box.read().step == 41 or worker.poll() is not None, "it is up")
        return worker, box.path

    yield begin
    for box in boxes:
        box.close()


@pytest.fixture
def records(run_dir: Path) -> Iterator[Callable[..., Records]]:
    made: list[Records] = []

    def make(job_id: str = "llama") -> Records:
        made.append(Records(run_dir, job_id))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_node(launcher: Launcher, run_dir: Path) -> Iterator[Callable[..., ChaosNode]]:
    """Yield a function that makes a node of a job with so many ranks."""
    made: list[ChaosNode] = []

    def make(ranks: int = 2, *, job: str = "llama", checks: int = 0, first: int = 0) -> ChaosNode:
        made.append(ChaosNode(launcher, run_dir / str(len(made)), job, ranks, checks, first))
        return made[-1]

    yield make
    for node in made:
        node.agent.terminate()  # it removes its files
        node.agent.wait()
