"""The runtime's side of the port, with a fixed plan in place of a manager: kill rank 1 once and follow the mode."""

import os
import select
import signal
import socket
import threading
from pathlib import Path

from taskd.runtime.agent.given import order_to_become, working_folder
from taskd.runtime.agent.ports import NodeIdentity, Outlook, Templates, WorkerHost
from taskd.wire.codec import decode_from_local, encode
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import Hello
from taskd.wire.standbys import Fork

DEADLINE_S = 30.0
FIRST, SECOND = LocalRank(0), LocalRank(1)


class LocalSocket:
    """The agent's socket, for one template and its standbys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)

    def accept(self) -> tuple[socket.socket, Hello]:
        """Return the next process that connects, and its first message."""
        link, _ = self._listener.accept()
        link.settimeout(DEADLINE_S)
        return link, hear(link)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when a process connects."""
        return self._listener.fileno()

    def take(self) -> socket.socket:
        """Return the next process that connects, which may never send anything."""
        link, _ = self._listener.accept()
        link.settimeout(DEADLINE_S)
        return link

    def environment(self) -> dict[str, str]:
        """Return the variables of a template."""
        return {"TASKD_AGENT_SOCKET": str(self.path), "TASKD_AGENT_PID": str(os.getpid())}

    def close(self) -> None:
        self._listener.close()


def hear(link: socket.socket) -> Hello:
    message = decode_from_local(link.recv(1 << 18))
    assert isinstance(message, Hello)
    return message


class ScriptedRuntime:
    """Implements `NodeRuntime`. FOLDER/calls lists the calls."""

    def __init__(self, folder: str, mode: str) -> None:
        self._folder = Path(folder)
        self._mode = mode
        self._starts: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._links: list[socket.socket] = []
        self._note(f"mode {mode}")

    places: int | None = None
    ended = False

    def of(self, master_addr: str | None, node_count: int, spec: object) -> "ScriptedRuntime":
        del spec
        self._note(f"made for {node_count} nodes, master {master_addr}")
        return self

    def ask(self, wants: int, local_ranks: int, least: int, templates: Templates) -> None:
        del local_ranks, least, templates
        self._note(f"asked for place {wants}")

    @property
    def checks(self) -> bool:
        return False

    def await_check(self) -> str:
        return ""

    def outlook(self, timeout_s: float | None) -> Outlook:
        del timeout_s
        return Outlook.FORMING

    def await_end(self, timeout_s: float) -> bool:
        del timeout_s
        return False  # torchrun's own barrier

    def _note(self, text: str) -> None:
        with (self._folder / "calls").open("a") as file:
            file.write(text + "\n")

    def worker_environment(self, local_rank: LocalRank) -> dict[str, str]:
        start = self._starts[local_rank] = self._starts.get(local_rank, -1) + 1
        return {"TASKD_INCARNATION": str(start), "TASKD_GENERATION": str(start)}

    def started(self, host: WorkerHost, identity: NodeIdentity) -> None:
        self._note(f"started {identity.ranks}")
        if self._mode in ("stock", "stock only"):
            host.stock()
        if not self._threads and self._mode != "stock only":
            self._threads.append(threading.Thread(target=self._play, args=(host,)))
            self._threads[0].start()

    def stopping(self) -> None:
        self._note("stopping")

    def stop(self, *, deserts: bool = False) -> None:
        del deserts
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._note("stop")

    def _play(self, host: WorkerHost) -> None:
        local = LocalSocket(self._folder / "agent.sock")
        standby = self._make_standby(host, local) if self._mode in ("warm", "hold") else None
        if self._mode == "hold":
            self._note("holding")
            (self._folder / "ready").open("w").close()
            return
        (self._folder / "up").open().close()
        old = os.pidfd_open(host.pid(SECOND))
        if self._mode == "fence":
            self._replace(host, None)
            _await_end(old)
            self._note("the old one has ended")
            return
        host.kill(SECOND, signal.SIGKILL)
        _await_end(old)
        if self._mode == "stock":
            return
        if self._mode == "give up":
            host.give_up("the script of this test says so")
            return
        self._note(f"status {host.exit_status(SECOND)}")
        self._replace(host, standby)
        local.close()

    def _make_standby(self, host: WorkerHost, local: LocalSocket) -> socket.socket:
        host.start_template({**host.environment(FIRST), **local.environment()})
        template, first = local.accept()
        template.send(encode(Fork(count=1)))
        second = hear(template)
        standby, hello = local.accept()
        self._note(f"template {first.threads} {second.threads}, standby {hello.role} {hello.pid}")
        self._links += [template, standby]
        self._standby_pid = hello.pid
        return standby

    def _replace(self, host: WorkerHost, standby: socket.socket | None) -> None:
        logs = host.open_logs(SECOND, 1)
        env = {**host.environment(SECOND), **logs.environment, "TASKD_INCARNATION": "1"}
        command = host.command(SECOND)
        self._note(f"command {command.python} {command.reason}")
        if standby is None:
            host.spawn(SECOND, env, logs)
            return
        standby.send(encode(order_to_become(command.argv, env, logs, working_folder())))
        host.adopt(SECOND, self._standby_pid, env, logs)


def _await_end(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(DEADLINE_S * 1000), "rank 1 did not end"
    os.close(descriptor)
