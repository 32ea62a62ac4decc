"""A manager.py's view of the API: bools, records on stderr, a clean end. Importing taskd costs nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from tests.launch import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
MANAGER = PROGRAMS / "manager.py"


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKD_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def python(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *words]
    return subprocess.run(arguments, env=environment(**env), capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_seeds_manager_serves_until_it_is_told_to_stop(number, run_dir):
    address = Address(LOOPBACK, free_port())
    env = environment(TASKD_MANAGER_PORT=str(address.port), TASKD_RUN_DIR=str(run_dir))
    arguments = [sys.executable, "-u", MANAGER]
    with (
        subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        AgentSocket(address, secured(Security(), address, run_dir)) as agent,
    ):
        try:
            while not agent.connected:
                assert process.poll() is None, process.stderr.read()
                agent.poll(0.1)
                agent.receive()
            process.send_signal(number)
            out, err = process.communicate(timeout=150)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "True\nTrue\n")
    assert "Traceback" not in err


def test_a_manager_of_several_nodes_that_nobody_reaches_says_so(run_dir):
    """As with `taskd manager`: without a secret it listens on loopback alone."""
    program = "import sys; sys.argv = ['manager.py']\n" + (ROOT / "examples" / "manager.py").read_text()
    env = environment(TASKD_MANAGER_PORT="0", TASKD_RUN_DIR=str(run_dir))
    arguments = [sys.executable, "-u", "-c", program.replace("node_nums=1 ", "node_nums=2 ")]
    with subprocess.Popen(arguments, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = [process.stderr.readline() for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        finally:
            process.kill()
    assert "listens on 127.0.0.1:" in said[0]
    assert "and the job has 2 nodes: for nodes elsewhere give a secret (TASKD_SECRET or TASKD_SECRET_FILE" in said[1]


def test_connections_that_say_nothing_take_no_place_of_agents(run_dir):
    """They are more than the descriptor limit that the shell has set."""
    address = Address(LOOPBACK, free_port())
    env = environment(TASKD_MANAGER_PORT=str(address.port), TASKD_RUN_DIR=str(run_dir))
    limited = 'ulimit -Sn 100 && exec "$0" -u "$1"'
    arguments = ["bash", "-c", limited, sys.executable, MANAGER]
    with ExitStack() as silent, subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE) as process:
        try:
            first = silent.enter_context(AgentSocket(address, secured(Security(), address, run_dir)))
            await_connection(first, process)
            for _ in range(300):
                silent.enter_context(socket.create_connection((address.host, address.port), timeout=20))
            end_s = time.monotonic() + 20
            while len(os.listdir(f"/proc/{process.pid}/fd")) < 300:
                assert time.monotonic() < end_s, "it does not take them all"
                first.poll(0.01)
            with AgentSocket(address, secured(Security(), address, run_dir)) as agent:
                await_connection(agent, process)
        finally:
            process.kill()


def await_connection(agent: AgentSocket, process: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + 20
    while not agent.connected:
        assert process.poll() is None
        assert time.monotonic() < end_s, agent.trouble
        agent.poll(0.1)
        agent.receive()


def test_a_wrong_dict_is_false_and_says_why_on_stderr():
    done = python(MANAGER, "procs_per_node")
    assert done.stdout == "False\nFalse\n"
    assert "unknown key procs_per_node (did you mean proc_per_node?)" in done.stderr
    assert "call init_taskd_manager first" in done.stderr
    assert done.returncode == 0


def test_a_port_in_use_is_false_and_says_who(run_dir):
    with socket.create_server((LOOPBACK, 0)) as held:
        port = held.getsockname()[1]
        done = python(MANAGER, TASKD_MANAGER_PORT=str(port), TASKD_RUN_DIR=str(run_dir))
    assert done.stdout == "True\nFalse\n"
    assert f"in use by process {os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_beyond_loopback_without_a_secret_is_false(run_dir):
    done = python(MANAGER, TASKD_MANAGER_HOST="0.0.0.0", TASKD_RUN_DIR=str(run_dir))
    assert done.stdout == "True\nFalse\n"
    assert "set TASKD_SECRET" in done.stderr


def test_records_go_where_the_user_sent_them():
    setup = "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='mine %(message)s')\n"
    done = python("-c", f"{setup}from taskd.api import init_taskd_manager\nprint(init_taskd_manager({{}}))")
    assert done.stdout.startswith("mine the manager is not configured")
    assert done.stderr == ""


def test_importing_taskd_loads_nothing_else():
    done = python(PROGRAMS / "imports_taskd.py")
    loaded = eval(done.stdout)
    assert "taskd" in loaded
    heavy = {"torch", "zmq", "msgspec", "logging", "numpy", "cffi", "taskd.config", "taskd.api"}
    assert not heavy & set(loaded), done.stderr


def test_asking_whether_taskd_is_on_loads_nothing_heavy():
    done = python(PROGRAMS / "asks_whether_on.py")
    assert done.stdout == "[]\n", done.stderr


def test_an_unknown_name_is_refused_with_the_known_ones():
    done = python("-c", "import taskd; taskd.Trainstate")
    assert "module 'taskd' has no attribute 'Trainstate'; it has Share, TrainState" in done.stderr
