"""`taskd drain`: the command in a process of its own, and a manager's end of the link as its peer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.runtime.links.links import ManagerSocket
from taskd.runtime.links.loopback import secured
from taskd.wire.messages import Answer, Drain
from tests.launch import Launcher, free_port
from tests.torchrun.test_cli import ENVIRONMENT

SECRET = "sixteen or more characters"
BARE: dict[str, str | None] = {
    **ENVIRONMENT,
    **dict.fromkeys(
        ("TASKD_MANAGER", "TASKD_MANAGER_PORT", "TASKD_SECRET", "TASKD_SECRET_FILE", "TASKD_JOB_ID", "MINDX_TASK_ID")
    ),
}


def taskd_drain(launcher: Launcher, *words: str, **env: str) -> tuple[int, str]:
    return launcher.run(["python", "-m", "taskd", "drain", *words], env={**BARE, **env})


@contextmanager
def manager(
    answer: Answer, run_dir: Path, secret: str | None = None, job_id: str = "default"
) -> Iterator[tuple[Address, list[Drain]]]:
    """Yield a manager's socket that gives this answer to all: its address, and the list of its requests."""
    listen = Address(LOOPBACK, 0)
    security = secured(Security(secret.encode() if secret else None, job_id=job_id), listen, run_dir)
    asked: list[Drain] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            socket.poll(0.05)
            for peer, message in socket.receive():
                assert isinstance(message, Drain)
                asked.append(message)
                socket.send(peer, answer)

    with ManagerSocket(listen, security) as socket:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield socket.address, asked
        finally:
            over.set()
            thread.join()


def test_granted(launcher: Launcher, run_dir: Path) -> None:
    """The manager's answer is the result. It receives node, job and secret as they were given."""
    with manager(Answer(granted=True, text="its ranks move to node7"), run_dir, SECRET, "night") as (address, asked):
        env = {"TASKD_MANAGER": str(address), "TASKD_SECRET": SECRET, "TASKD_JOB_ID": "night"}
        assert taskd_drain(launcher, "gpu-node-3", **env) == (0, "its ranks move to node7\n")
    assert asked == [Drain(job_id="night", node="gpu-node-3")]


def test_another_job_with_the_same_secret(launcher: Launcher, run_dir: Path) -> None:
    """Its manager receives no request, and the error has the given name."""
    with manager(Answer(granted=True, text="yes"), run_dir, SECRET, "day") as (address, asked):
        env = {"TASKD_MANAGER": str(address), "TASKD_SECRET": SECRET, "TASKD_JOB_ID": "night"}
        status, output = taskd_drain(launcher, "gpu-node-3", "--timeout", "3", **env)
    assert (status, asked) == (1, [])
    assert "manages another job than 'night'" in output
    assert "check TASKD_MANAGER, TASKD_JOB_ID and the secret" in output


def test_refused(launcher: Launcher, run_dir: Path) -> None:
    """The command line's address comes before the environment's. Without a secret the run directory has one."""
    env = {"TASKD_MANAGER": "127.0.0.1:1", "TASKD_RUN_DIR": str(run_dir)}
    with manager(Answer(granted=False, text="no node waits for its place; start one more"), run_dir) as (
        address,
        asked,
    ):
        status, output = taskd_drain(launcher, "2", "--manager", str(address), **env)
    assert status == 1
    assert output.startswith("taskd drain: ")
    assert "no node waits for its place; start one more" in output
    assert [message.node for message in asked] == ["2"]


def test_found_as_an_agent_finds_it(launcher: Launcher, run_dir: Path) -> None:
    with manager(Answer(granted=True, text="they move"), run_dir) as (address, _):
        port = str(address.port)
        env = {"MASTER_ADDR": address.host, "TASKD_MANAGER_PORT": port, "TASKD_RUN_DIR": str(run_dir)}
        assert taskd_drain(launcher, "0", **env) == (0, "they move\n")


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({}, "give --manager HOST:PORT, or set TASKD_MANAGER"),
        ({"TASKD_MANAGER": "embedded"}, "give --manager HOST:PORT, or set TASKD_MANAGER"),
        ({"TASKD_MANAGER": "nowhere"}, "TASKD_MANAGER: found 'nowhere'"),
        ({"MASTER_ADDR": "node0"}, "without a secret"),
        (
            {"TASKD_MANAGER": "127.0.0.1:1", "TASKD_SECRET": "short"},
            "expected 128 or more; make one with",
        ),
    ],
    ids=["nothing", "embedded", "no address", "no secret", "short secret"],
)
def test_what_is_missing_is_said(launcher: Launcher, env: dict[str, str], text: str) -> None:
    status, output = taskd_drain(launcher, "1", **env)
    assert status == 1
    assert text in output
    assert "Traceback" not in output


def test_nobody_answers(launcher: Launcher) -> None:
    status, output = taskd_drain(launcher, "1", "--timeout=0.5", "--manager", f"127.0.0.1:{free_port()}")
    assert status == 1
    assert "has not answered within 0.5 s" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "the following arguments are required: NODE"),
        (("node 3",), "expected a place's number, like 3, or a node's host name"),
        (("1", "--manager", "node0"), "expected host:port, like node0:9601"),
        (("1", "--timeout", "soon"), "expected a number of seconds above 0"),
    ],
    ids=["no node", "two words", "no port", "no number"],
)
def test_wrong_usage(launcher: Launcher, words: tuple[str, ...], text: str) -> None:
    status, output = taskd_drain(launcher, *words)
    assert status == 2
    assert text in output


def test_help(launcher: Launcher) -> None:
    status, output = taskd_drain(launcher, "--help")
    assert status == 0
    for word in ("NODE", "--manager HOST:PORT", "--timeout SECONDS", "TASKD_SECRET_FILE", "exit code: 0"):
        assert word in output
