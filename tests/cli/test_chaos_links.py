"""`taskd chaos` on links, between nodes with networks of their own (`tests/nodes.py`)."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from taskd.errors import ChaosError
from taskd.runtime.chaos.cleanup import Cleanup
from taskd.runtime.chaos.network import NetworkCommand
from taskd.runtime.chaos.pressure import change_network
from taskd.runtime.chaos.scenario_run import ScenarioRun
from taskd.runtime.system.processes import read
from tests.cli.chaos import ChaosNode, Process
from tests.nodes import Node, Nodes
from tests.nodes_or_skip import nodes_or_skip
from tests.shim.armed import plain, until

pytestmark = [pytest.mark.root]
TIMEOUT_S = 20.0
AT_ONCE_S = 0.3
INGRESS = "tc filter show dev eth0 ingress"
Pair = tuple[socket.socket, socket.socket]


class Inside:
    """Starts processes on a node."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._outputs: dict[int, Path] = {}

    def start(self, command: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None) -> Process:
        path = self._folder / f"output-{len(self._outputs)}"
        process = self._node.start(command, env=env, output=path)
        self._outputs[process.pid] = path
        return process

    def output(self, process: Process) -> str:
        return self._outputs[process.pid].read_text()

    def show(self) -> None:
        """Print all outputs for the report of a failed test."""
        for path in self._outputs.values():
            print(f"--- {path.name}\n{path.read_text()}")


@pytest.fixture
def nodes(leak_mark: str) -> Iterator[Nodes]:
    with nodes_or_skip(3) as made:
        yield made


@pytest.fixture
def node(nodes: Nodes, run_dir: Path) -> Iterator[ChaosNode]:
    """Yield a node of a job, on the first of the nodes."""
    place = Inside(nodes[0], run_dir)
    yield ChaosNode(place, run_dir / "run", "llama", 0)
    nodes[0].kill_all()
    place.show()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Callable[[int], Pair]]:
    """Yield a function that connects the first node with another one."""
    opened: list[socket.socket] = []

    def make(number: int) -> Pair:
        with closing(nodes[number].socket()) as listener:
            listener.bind(("", 0))
            listener.listen()
            near = nodes[0].socket()
            near.settimeout(TIMEOUT_S)
            opened.append(near)
            near.connect((nodes[number].address, listener.getsockname()[1]))
            far = listener.accept()[0]
            far.settimeout(TIMEOUT_S)
            opened.append(far)
        return near, far

    yield make
    for one in opened:
        one.close()


def passes(pair: Pair) -> tuple[bool, bool]:
    """Return whether a byte arrives, there and back. A byte that does not come within a moment counts as lost."""
    return goes(*pair), goes(*pair[::-1])


def goes(one: socket.socket, other: socket.socket) -> bool:
    other.settimeout(AT_ONCE_S)
    one.send(b"x")
    try:
        return other.recv(1) == b"x"
    except TimeoutError:
        return False


def arrives(pair: Pair) -> bool:
    """Return whether everything that was sent arrives in the end."""
    for one in pair:
        one.settimeout(TIMEOUT_S)
    return pair[1].recv(1) == pair[0].recv(1) == b"x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_cut_is_silent_and_undone(number, node, nodes, connect) -> None:
    pair = connect(1)
    assert passes(pair) == (True, True)
    before = facts(nodes[0])
    playing = node.play("cut-link")
    await_filter(nodes[0])
    assert passes(pair) == (False, False)
    node.end(playing, number)
    until(lambda: facts(nodes[0]) == before, "all is as before")
    assert arrives(pair)
    assert "undone: tc qdisc delete dev eth0 clsact" in node.said(playing)
    assert "undone: ip link delete hole" in node.said(playing)


def test_one_peer_is_cut_off_and_no_other(node, nodes, connect) -> None:
    one, other = connect(1), connect(2)
    playing = node.play("cut-link", "--peer", nodes[1].name)
    await_filter(nodes[0])
    assert passes(one) == (False, False)
    assert passes(other) == (True, True)
    told = node.end(playing)
    assert f"eth0: packets to and from {nodes[1].address} are lost without a word" in told
    assert arrives(one)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interface_comes_up_with_what_it_had(number, node, nodes, connect) -> None:
    space = nodes[0].space
    gateway = nodes[1].address
    space.ip(
        "address add fd77::1/64 dev eth0 nodad",
        "route add 192.0.2.1/32 dev eth0",
        "route add 198.51.100.0/24 via 192.0.2.1 dev eth0",
        f"route add default via {gateway}",
        "route add fd99::/64 via fd77::9 dev eth0",
    )
    pair = connect(1)
    before = facts(nodes[0])
    assert "198.51.100.0" in before
    assert "fd99::" in before
    status, told = node.run("cut-link", "--down")
    assert status == 1
    assert "eth0 carries the default route: this node may not be reached until it is undone" in told
    assert facts(nodes[0]) == before
    playing = node.play("cut-link", "--down", "--yes")
    until(lambda: "198.51.100.0" not in facts(nodes[0]), "the routes are forgotten")
    assert passes(pair) == (False, False)
    node.end(playing, number)
    until(lambda: facts(nodes[0]) == before, "all is as before")
    assert arrives(pair)


def test_a_link_is_slow_until_the_end(node, nodes, connect) -> None:
    near, far = connect(1)
    before = facts(nodes[0])
    playing = node.play("slow-link", "--mbit", 8)
    until(lambda: "tbf" in facts(nodes[0]), "it is slow")
    assert "rate 8Mbit" in facts(nodes[0])
    begun_s = time.monotonic()
    Thread(target=near.sendall, args=(bytes(1_000_000),)).start()
    left = 1_000_000
    while left:
        left -= len(far.recv(left))
    assert time.monotonic() - begun_s > 0.8  # 8 Mbit, less a burst of half a Mbit that is sent at once
    other = node.run("slow-link", "--mbit", 4)
    assert other[0] == 1
    assert "another program shapes the traffic of eth0 already (tbf); end that first" in other[1]
    assert "undone" not in other[1]
    told = node.end(playing)
    assert "eth0: sends at most 8 Mbit/s" in told
    assert facts(nodes[0]) == before


def test_what_another_program_filters_is_left_alone(node, nodes) -> None:
    tell(nodes[0], "tc qdisc add dev eth0 clsact")
    before = facts(nodes[0])
    status, told = node.run("cut-link")
    assert status == 1
    assert "another program filters the traffic of eth0 already; try --down" in told
    assert facts(nodes[0]) == before


def test_a_step_that_fails_takes_the_others_back(run_dir) -> None:
    made = run_dir / "made"
    steps = [
        NetworkCommand(("touch", str(made)), (("rm", str(made)),)),
        NetworkCommand(("false",), (("touch", str(made)),)),
    ]
    cleanup = Cleanup()
    with ScenarioRun().open() as run, pytest.raises(ChaosError, match="false: status 1"):
        change_network(run, cleanup, steps, "a change of two steps")
    assert made.exists()
    assert cleanup.close()
    assert not made.exists()


def test_a_rate_that_cannot_be_is_refused(node, nodes) -> None:
    before = facts(nodes[0])
    status, told = node.run("slow-link", "--mbit", "1e-9")
    assert status == 1
    assert "tc qdisc add dev eth0 root tbf rate 1e-09mbit" in told
    assert "undone" not in told
    assert facts(nodes[0]) == before


def test_without_the_right_it_says_which_one(node) -> None:
    plays = node.started(["setpriv", "--bounding-set=-net_admin", "--"], "cut-link")
    assert plays.wait(30) == 1
    assert "this process may not change the network: run it as root" in node.said(plays)


def test_loopback_and_unknown_interfaces(node) -> None:
    status, told = node.run("slow-link", "--mbit", 10, "--interface", "lo")
    assert status == 1
    assert "all that is on this machine talks over lo; if that is what you want, say --yes" in told
    status, told = node.run("cut-link", "--interface", "eth7")
    assert status == 1
    assert "found no interface eth7 that is up, expected one of lo, eth0" in told
    status, told = node.run("cut-link", "--peer", "nobody.invalid")
    assert status == 1
    assert "found no address of 'nobody.invalid'" in told


def test_a_dry_run_changes_nothing(node, nodes) -> None:
    before = facts(nodes[0])
    status, told = node.run("cut-link", "--dry-run")
    assert status == 0
    assert "would run: tc qdisc add dev eth0 clsact, and at the end: tc qdisc delete dev eth0 clsact" in told
    assert facts(nodes[0]) == before


def test_without_a_job_it_says_what_is_missing(nodes, run_dir) -> None:
    place = Inside(nodes[1], run_dir)

    def run() -> str:
        process = place.start(["python", "-m", "taskd", "chaos", "kill", "0"], env=plain())
        assert process.wait(30) == 1
        return place.output(process)

    assert "found no job under taskd on this node" in run()
    assert "start the job first, or give --wait SECONDS" in run()
    named = run_dir / "torchrun"
    named.symlink_to("/bin/sleep")
    place.start([named, "1000"])

    def numbers() -> list[int]:
        return [inside for inside, pid in nodes[1].pids().items() if read_command(pid).startswith(str(named))]

    until(numbers, "a torchrun runs")
    assert f"process {numbers()[0]} is a torchrun without it: start it with TASKD_PROCESS_ENABLE=on" in run()


def read_command(pid: int) -> str:
    return (read(f"/proc/{pid}/cmdline") or "").replace("\0", " ")


def facts(node: Node) -> str:
    """Return links, addresses, routes and shapes of a node, as far as a scenario could change them."""
    return "".join(
        tell(node, command)
        for command in (
            "ip -o -4 address",
            "ip -o -6 address show scope global",
            "ip route",
            "ip -6 route",
            "ip -o link show up",
            "tc qdisc",
            "tc filter show dev eth0 egress",
            INGRESS,
        )
    )


def await_filter(node: Node) -> None:
    """Wait until the last step of a silent cut is done."""
    until(lambda: "mirred" in tell(node, INGRESS), "what comes in is lost")


def tell(node: Node, command: str) -> str:
    """Return the output of a command on the node."""
    words = ["nsenter", f"--target={node.space.pid}", "--net", "--", *command.split()]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
