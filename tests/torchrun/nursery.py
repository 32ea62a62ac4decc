"""An agent for templates and standbys, in the test's own process: real socket, real processes, nothing else."""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from taskd.adaptors.torchrun.children import AdoptedProcess
from taskd.adaptors.torchrun.template_process import TemplateProcess
from taskd.runtime.agent.given import order_to_become
from taskd.runtime.agent.ports import Command, Logs
from taskd.runtime.system.packets import send_packet
from taskd.wire.codec import encode
from taskd.wire.messages import Hello
from taskd.wire.standbys import Fork, Prepare
from tests.leaks import set_subreaper
from tests.torchrun.scripted import DEADLINE_S, LocalSocket, hear


@dataclass
class Standby:
    """A process that can become a rank."""

    link: socket.socket
    hello: Hello


class Nursery:
    """A context whose ranks run `program`.

    At its end all processes are dead and collected, and this process reaps no orphans any more.
    """

    def __init__(self, folder: Path, env: dict[str, str], *program: str) -> None:
        self._folder = folder
        self._env = env
        self.local = LocalSocket(folder / "agent.sock")
        self.process = TemplateProcess(Command(program or ("script.py",), python=True))
        self.pid = 0
        self._links: list[socket.socket] = []

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.close()
        if self.pid:
            collect_children_of(self.pid)  # all were killed, and may take a moment to end
        for link in self._links:
            link.close()
        self.local.close()
        set_subreaper(False)

    def launch(self, cwd: Path | None = None, **variables: str) -> Hello:
        """Start a template and return its first Hello. It is still importing."""
        before = os.getcwd()
        os.chdir(cwd or before)  # torchrun's directory is that of its ranks
        try:
            self.pid = self.process.start({**self._env, **self.local.environment(), **variables})
        finally:
            os.chdir(before)
        self.template, first = self._accept()
        assert (first.role, first.pid, first.threads) == ("template", self.pid, 0)
        return first

    def start_template(self, cwd: Path | None = None, **variables: str) -> Hello:
        """Start a template and wait until it can serve."""
        self.launch(cwd, **variables)
        self.template.send(encode(Fork(count=0)))  # a process waits, so the template stands back behind no rank
        ready = hear(self.template)
        if ready.threads > 1:
            hear(self.template)  # it repeats that, in place of forking
        return ready

    def fork(self, count: int, *, prepare: bool = True) -> list[Standby]:
        self.template.send(encode(Fork(count=count)))
        standbys = [Standby(*self._accept()) for _ in range(count)]
        for standby in standbys if prepare else ():
            standby.link.send(encode(Prepare()))
        return standbys

    def become(self, standby: Standby, argv: tuple[str, ...], cwd: Path | None, env: dict[str, str]) -> int:
        """Let it run a script to the end. Return the exit status."""
        out, err = (str(path) for path in self._files(standby))
        order = order_to_become(argv, env, Logs(out, err, None), bytes(cwd) if cwd else None)
        send_packet(standby.link, encode(order))
        assert standby.link.recv(1) == b"", "it lets go of its link when it is no standby any more"
        released = self.process.release(standby.hello.pid)
        status = (released or AdoptedProcess(standby.hello.pid)).wait(DEADLINE_S)
        collect_children_of(standby.hello.pid)
        return status

    def output(self, standby: Standby) -> tuple[str, str]:
        out, err = (path.read_text() for path in self._files(standby))
        return out, err

    def _files(self, standby: Standby) -> tuple[Path, Path]:
        return self._folder / f"{standby.hello.pid}.out", self._folder / f"{standby.hello.pid}.err"

    def _accept(self) -> tuple[socket.socket, Hello]:
        link, hello = self.local.accept()
        self._links.append(link)
        return link, hello


def collect_children_of(rank: int) -> None:
    """Collect a rank's children. One of them (multiprocessing's resource tracker) ends a moment later, as our child."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitid(os.P_PGID, rank, os.WEXITED)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
