"""`taskd manager` as a user calls it: one line when it listens, one when it cannot, and a clean end."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from taskd.config.address import parse_address
from taskd.config.security import Security
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from tests.cli.managers import serving
from tests.e2e.job import ROOT, no_outer_job
from tests.launch import Launcher

SIZE = ("--nodes", "2", "--procs-per-node", "4")
SECRET = "0123456789abcdef" * 2
Told = tuple[int, str]


@pytest.fixture
def env(run_dir: Path) -> dict[str, str | None]:
    return {**no_outer_job(), "PYTHONPATH": str(ROOT), "TASKD_RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": None}


@pytest.fixture
def refused(launcher: Launcher, env: dict[str, str | None]) -> Callable[..., Told]:
    """Return a function that calls a manager that cannot serve. It returns exit status and line, less the command."""

    def call(*words: str, **more: str) -> Told:
        status, output = launcher.run(["python", "-m", "taskd", "manager", *words], env={**env, **more})
        assert output.count("\n") == 1, output
        assert output.startswith("taskd manager: "), output
        return status, output.removeprefix("taskd manager: ")

    return call


def connects(said: str, run_dir: Path, security: Security) -> None:
    """Check that an agent reaches the manager at the address in its line."""
    reached = parse_address(said.replace("*", "127.0.0.1"))
    assert reached is not None, said
    with AgentSocket(reached, secured(security, reached, run_dir)) as agent:
        for _ in range(300):
            agent.poll(0.1)
            agent.receive()
            if agent.connected:
                return
        raise AssertionError(agent.trouble)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_cleanly(env: dict[str, str | None], run_dir: Path, number: int) -> None:
    with serving(*SIZE, "--port", "0", "--job-id", "llama", env=env) as served:
        assert served.said == f"manager of job llama, 2 nodes with 4 ranks each, listens on {served.address}\n"
        connects(served.address, run_dir, Security(job_id="llama"))
        status, out, err = served.end(number)
    assert (status, out, err.count("\n")) == (0, "", 1)
    assert (
        f"only this machine reaches {served.address}, and the job has 2 nodes: for nodes elsewhere give a secret" in err
    )
    assert (run_dir / "llama" / "journal.jsonl").exists()


def test_variables_in_place_of_options(env: dict[str, str | None], run_dir: Path) -> None:
    given = {"TASKD_NODE_NUMS": "1", "TASKD_PROC_PER_NODE": "1", "TASKD_MANAGER_PORT": "0", "TASKD_JOB_ID": "llama"}
    with serving(env={**env, **given, "TASKD_SECRET": SECRET}) as served:
        assert served.said.startswith("manager of job llama, 1 node with 1 rank each, listens on *:")
        connects(served.address, run_dir, Security(SECRET.encode(), job_id="llama"))
        assert served.end(signal.SIGTERM) == (0, "", "")


def test_an_option_comes_before_its_variable(env: dict[str, str | None], run_dir: Path) -> None:
    secret = run_dir / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    other = {"TASKD_NODE_NUMS": "9", "TASKD_JOB_ID": "gpt", "TASKD_MANAGER_PORT": "x", "TASKD_MANAGER_HOST": "::1"}
    words = ("--port", "0", "--host", "127.0.0.1", "--job-id", "llama", "--run-dir", str(run_dir / "run"))
    with serving(*SIZE, *words, "--secret-file", str(secret), env={**env, **other, "TASKD_RUN_DIR": "no"}) as served:
        assert served.said.startswith("manager of job llama, 2 nodes with 4 ranks each, listens on 127.0.0.1:")
        connects(served.address, run_dir, Security(SECRET.encode(), job_id="llama"))
        assert served.end(signal.SIGTERM)[:2] == (0, "")
    assert (run_dir / "run" / "llama").is_dir()


WRONG_USAGE = {
    (): "found neither --nodes nor TASKD_NODE_NUMS, expected a whole number from 1 to 100000; add --nodes N",
    ("--nodes", "2"): "found neither --procs-per-node nor TASKD_PROC_PER_NODE, expected a whole number from 1 to 1024",
    ("--nodes", "0"): "argument --nodes: found 0, expected a whole number from 1 to 100000",
    ("--nodes", "two"): "argument --nodes: found 'two', expected a whole number from 1 to 100000",
    ("--procs-per-node", "1025"): "argument --procs-per-node: found 1025, expected a whole number from 1 to 1024",
    ("--port", "65536"): "argument --port: found 65536, expected a whole number from 0 to 65535; leave it out for 9601",
    ("--port",): "argument --port: expected one argument",
    ("--host", "no host"): "argument --host: found 'no host', expected a host name, an address, or * for all",
    ("--job-id", "../.."): "argument --job-id: found '../..', expected a name",
    ("--run-dir", "runs"): "argument --run-dir: found 'runs', expected an absolute path",
    ("--secret-file", "secret"): "argument --secret-file: found 'secret', expected an absolute path",
    ("--secret", "x"): "unrecognized arguments: --secret x",
    ("here",): "unrecognized arguments: here",
}


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_is_told_in_one_line(refused: Callable[..., Told], words: tuple[str, ...]) -> None:
    status, line = refused(*words)
    assert status == 2
    assert line.startswith(WRONG_USAGE[words])
    assert line.endswith("; see taskd manager --help\n")


def test_a_port_in_use_is_told_with_who_has_it(refused: Callable[..., Told]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        status, line = refused(*SIZE, "--port", str(port))
    assert status == 1
    assert line.startswith(f"cannot listen on 127.0.0.1:{port}: the port is in use by process {os.getpid()} (")
    assert "choose another port" in line


def test_beyond_loopback_it_wants_a_secret(refused: Callable[..., Told]) -> None:
    status, line = refused(*SIZE, "--host", "*", "--port", "0")
    assert status == 1
    assert line.startswith("asked to listen on *:0 without a secret, expected one beyond loopback; set TASKD_SECRET")


def test_a_secret_that_is_too_short_is_not_shown(refused: Callable[..., Told]) -> None:
    status, line = refused(*SIZE, TASKD_SECRET="brief-word")
    assert status == 1
    assert line.startswith("TASKD_SECRET: found a secret of 10 bytes that holds 60 random bits at most, expected 128")
    assert "openssl rand -hex 32" in line
    assert "brief" not in line


def test_a_secret_that_others_can_read(refused: Callable[..., Told], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    status, line = refused(*SIZE, "--secret-file", str(secret))
    assert status == 1
    assert f"chmod 600 {secret}" in line


def test_a_wrong_variable_is_named(refused: Callable[..., Told]) -> None:
    status, line = refused("--procs-per-node", "4", TASKD_NODE_NUMS="none")
    assert status == 1
    assert line.startswith("TASKD_NODE_NUMS: found 'none', expected a whole number from 1 to 100000")


def test_a_run_directory_that_cannot_be_made(refused: Callable[..., Told]) -> None:
    status, line = refused(*SIZE, "--port", "0", "--run-dir", "/proc/none")
    assert status == 1
    assert "cannot hold" in line
    assert "TASKD_RUN_DIR" in line
