"""Several nodes on this machine: each has a network, process ids, a host name, /dev/shm and a TMPDIR of its own.

    with Nodes(3) as nodes:
        server = nodes[0].start(["python", "server.py"])
        client = nodes[1].start(["python", "client.py", nodes[0].name])
        nodes[1].kill_all()

Rules:

1. A node is a set of Linux namespaces, and lives as long as its process 1 (`tests/nodes_init.py`). That ends with this
   process, however this process ends. The kernel then kills all in the node and removes its network. The machine itself
   has no names of nodes, so runs cannot collide and none leaves anything behind.
2. Nodes are joined by a bridge that lies in a network namespace of its own, too, away from the machine's firewall.
3. Files are shared, as on a cluster's file system, except /dev/shm and /run; TMPDIR is a folder in /run. `Node.file`
   gives this process access to such a file.
4. Process ids inside are the node's own: two nodes often have the same. `Node.kill` takes one from inside.
5. It needs root, `ip`, `nsenter` and `unshare`; `NodesUnavailableError` names missing ones.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.launch import environment
from tests.nodes_space import NodesError, NodesUnavailableError, Space, check_machine, inside_pids

_SUBNET = "10.77.0"
_NEAR = "near"
_FAR = "far"
_GONE = ("Cannot find device", "No such device")


class Node:
    """One node, made by `Nodes`. It is up until it is killed, and can be booted again."""

    def __init__(self, nodes: "Nodes", number: int) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = f"{_SUBNET}.{number + 1}"
        self._nodes = nodes
        self.port = f"port{number}"
        self._space: Space | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def boot(self) -> None:
        """Make the node anew, with its old name and address, and nothing in its memory."""
        assert self._space is None, f"{self.name} is up"
        init = ["unshare", "--net", "--mount", "--uts", "--ipc", "--mount-proc", "--"]
        program = Path(__file__).with_name("nodes_init.py")
        # -S and -E: a node must come up in an instant, whatever this environment adds to Python.
        self._space = Space([*init, sys.executable, "-S", "-E", str(program), self.name], new_pids=True)
        self._nodes.hub.ip(
            f"link add {self.port} type veth peer name eth0 netns {self._space.pid}",
            f"link set {self.port} master {_NEAR} up",
        )
        hardware = f"02:00:00:00:00:{self.number + 1:02x}"  # the same after a new boot: the others remember it
        self._space.ip(f"address add {self.address}/24 dev eth0", f"link set eth0 address {hardware} up")
        self._nodes.spread_names()

    @property
    def up(self) -> bool:
        """True if it can run processes."""
        return self._space is not None

    @property
    def space(self) -> Space:
        """Its namespaces. Fails when it is down."""
        assert self._space is not None, f"{self.name} is down"
        return self._space

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        output: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a process in the node, in a session of its own; "python" stands for this interpreter.

        `env` adds to this process's environment, or with None removes a variable. stdout and stderr are appended to
        `output`, or are this process's own. The returned process has its pid outside.
        """
        words = [str(word) for word in command]
        if words[0] == "python":
            words[0] = sys.executable
        variables = environment({"TMPDIR": "/run/tmp", **(env or {})})
        sink = None if output is None else output.open("ab")
        try:
            process = self.space.start(words, env=variables, cwd=cwd or Path.cwd(), sink=sink)
        finally:
            if sink is not None:
                sink.close()
        self._started.append(process)
        return process

    def socket(self, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Return an IPv4 socket of this process on the node's network. It outlives the node, unplugged."""
        return self.space.socket(socket.AF_INET, kind)

    def file(self, path: str | Path) -> Path:
        """Return this process's path to a file in the node's own /run or /dev/shm. The file ends with the node."""
        return Path(f"/proc/{self.space.pid}/root") / str(path).lstrip("/")

    def pids(self) -> dict[int, int]:
        """Return all its processes, including process 1: pid inside to pid outside."""
        return inside_pids(self.space)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Signal a process by its pid inside. Raises `ProcessLookupError`."""
        outside = self.pids().get(pid)
        if outside is None:
            raise ProcessLookupError(f"{self.name} has no process {pid}")
        os.kill(outside, number)

    def kill_all(self) -> None:
        """Kill all its processes at once. The kernel still ends their connections, so that peers detect it at once."""
        assert self.up, f"{self.name} is down"
        self.end()
        self._nodes.hub.ip(f"link delete {self.port}", may_fail=_GONE)  # the kernel may be faster

    def end(self) -> None:
        """Kill and collect all its processes, if it is up."""
        space, self._space = self._space, None
        if space is not None:
            space.end(self._started)
        self._started = []

    def power_off(self) -> None:
        """Kill all its processes, and let no packet out: peers receive nothing."""
        self.cut()
        self.kill_all()

    def cut(self) -> None:
        """Part it from all others: packets are lost without a trace, as behind a switch that has failed."""
        assert self.up, f"{self.name} is down"
        self._nodes.hub.ip(f"link set {self.port} nomaster")

    def mend(self) -> None:
        """Undo `cut`, or `Nodes.part` for this node."""
        self._nodes.mend(self)


class Nodes(Sequence[Node]):
    """A context with so many nodes, all up. At its end all processes in them are dead and collected.

    Raises `NodesUnavailableError` on entry where the machine cannot do it.
    """

    def __init__(self, count: int) -> None:
        assert 1 <= count <= 250, "the nodes share one /24"
        self._nodes = [Node(self, number) for number in range(count)]
        self._names: dict[str, Node] = {}
        self._hub: Space | None = None

    def __enter__(self) -> "Nodes":
        check_machine()
        try:
            self._hub = self._make_hub()
            for node in self._nodes:
                node.boot()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, number: int) -> Node:  # type: ignore[override] # no slices
        return self._nodes[number]

    @property
    def hub(self) -> Space:
        """Namespaces of the bridges."""
        assert self._hub is not None, "the nodes exist only inside `with`"
        return self._hub

    def part(self, *nodes: Node) -> None:
        """Part these nodes from the others, all at once. They stay connected with each other. `mend` undoes it."""
        self._plug(_FAR, nodes)

    def mend(self, *nodes: Node) -> None:
        """Undo `part`, or `Node.cut`, for these nodes at once."""
        self._plug(_NEAR, nodes)

    def _plug(self, bridge: str, nodes: Sequence[Node]) -> None:
        """Plug nodes into a bridge of the hub with one command: one each would part them at different times."""
        assert all(node.up for node in nodes), f"down: {[node.name for node in nodes if not node.up]}"
        self.hub.ip(*(f"link set {node.port} master {bridge}" for node in nodes))

    def rename(self, name: str, node: Node) -> None:
        """Let a host name stand for a node, on all nodes, from now on."""
        self._names[name] = node
        self.spread_names()

    def spread_names(self) -> None:
        """Give every node that is up the names of all (its /etc/hosts)."""
        lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in self._nodes)]
        lines += [f"{node.address} {name}" for name, node in self._names.items()]
        for node in self._nodes:
            if node.up:
                node.file("/run/hosts").write_text("\n".join(lines) + "\n")

    @staticmethod
    def _make_hub() -> Space:
        hub = Space(["unshare", "--net", "--", "cat"])
        try:
            hub.ip(*(f"link add {name} up type bridge" for name in (_NEAR, _FAR)))
        except NodesError as error:
            hub.end([])
            raise NodesUnavailableError(f"the kernel has no bridges: {error}") from error
        return hub

    def _end(self) -> None:
        # Nothing here needs a living hub: the end of a test may have killed all processes with its mark.
        for node in self._nodes:
            node.end()
        if self._hub is not None:
            self._hub.end([])
            self._hub = None
