"""The namespaces of one node or of the hub between nodes, kept alive by one process.

Rules:

1. The first process holds them. It ends when its stdin does, so it cannot outlive this process.
2. A process of a node is a child of this process, and yet has a pid of the node: for the moment of the fork, the pid
   namespace for children of this thread is the node's (`setns`). All other namespaces are entered by `nsenter`.
3. The kernel lets the first process be collected only after all others of its pid namespace were.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_CLONE_NEW = {"pid": 0x20000000, "net": 0x40000000}
_NEEDED = ("ip", "nsenter", "unshare")
_SYSTEM_PATH = f"{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"
_libc = ctypes.CDLL(None, use_errno=True)


class NodesError(Exception):
    """A change to a node's network was refused."""


class NodesUnavailableError(NodesError):
    """This machine, or this user, cannot make nodes. The text gives the reason and a remedy."""


class Space:
    """Namespaces, and the process that holds them. `pid` is that process's, outside."""

    def __init__(self, command: list[str], *, new_pids: bool = False) -> None:
        """Start `command`, which enters new namespaces. It must answer on stdout and end with its stdin."""
        with _new_pid_namespace() if new_pids else contextlib.nullcontext():
            self._first = subprocess.Popen(
                command,
                env={**os.environ, "PATH": _SYSTEM_PATH},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        self.pid = self._first.pid
        assert self._first.stdin is not None
        assert self._first.stdout is not None
        try:
            self._first.stdin.write(b"\n")
            answer = self._first.stdout.read(1)
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.end([])
            raise NodesUnavailableError(f"{' '.join(command)}: failed as above; namespaces need CAP_SYS_ADMIN")

    def start(
        self, command: list[str], *, env: Mapping[str, str], cwd: Path, sink: IO[bytes] | None
    ) -> "subprocess.Popen[bytes]":
        """Start a process in these namespaces."""
        with _inside(self.pid, "pid"):
            return subprocess.Popen(
                [*self._enter("--net", "--mount", "--uts", "--ipc"), "env", "-C", str(cwd), *command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def socket(self, family: int, kind: int) -> socket.socket:
        """Return a socket of this process on this network."""
        with _inside(self.pid, "net"):
            return socket.socket(family, kind)

    def ip(self, *lines: str, may_fail: tuple[str, ...] = ()) -> None:
        """Run commands of `ip` on this network. An error with one of the texts `may_fail` is ignored."""
        done = subprocess.run(
            [*self._enter("--net"), "ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": _SYSTEM_PATH},
        )
        if done.returncode != 0 and not any(text in done.stderr for text in may_fail):
            raise NodesError(f"ip {'; '.join(lines)}: {done.stderr.strip()}")

    def tc(self, line: str) -> None:
        """Run a command of `tc` on this network."""
        done = subprocess.run(
            [*self._enter("--net"), "tc", *line.split()],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": _SYSTEM_PATH},
        )
        if done.returncode != 0:
            raise NodesError(f"tc {line}: {done.stderr.strip()}")

    def end(self, started: Sequence["subprocess.Popen[bytes]"]) -> None:
        """Kill all processes in it at once. `started` are those that this process has to collect."""
        self._first.kill()
        for process in started:
            process.wait()
        self._first.wait()
        for stream in (self._first.stdin, self._first.stdout):
            if stream is not None:
                stream.close()

    def _enter(self, *kinds: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", *kinds, "--"]


def check_machine() -> None:
    """Raise `NodesUnavailableError` if it is known beforehand that nodes cannot be made."""
    if os.geteuid() != 0:
        raise NodesUnavailableError(f"found user {os.geteuid()}, expected root: only root can make namespaces")
    missing = [name for name in _NEEDED if shutil.which(name, path=_SYSTEM_PATH) is None]
    if missing:
        raise NodesUnavailableError(f"found no {', '.join(missing)}; install the packages iproute2 and util-linux")


def inside_pids(space: Space) -> dict[int, int]:
    """Return the processes of a pid namespace: pid inside to pid outside."""
    namespace = _link(space.pid)
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and _link(int(name)) == namespace:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                fields = Path(f"/proc/{name}/status").read_text().partition("\nNSpid:")[2].partition("\n")[0].split()
                found[int(fields[-1])] = int(name)
    return found


def _link(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""  # it has ended


@contextlib.contextmanager
def _new_pid_namespace() -> Iterator[None]:
    """Make the next child of this thread process 1 of a new pid namespace."""
    with _and_back("pid"):
        _check(_libc.unshare(_CLONE_NEW["pid"]), "unshare a pid namespace")
        yield


@contextlib.contextmanager
def _inside(pid: int, kind: str) -> Iterator[None]:
    """Hold this thread in that process's network, or let its children get pids of that process's pid namespace."""
    with _and_back(kind):
        with Path(f"/proc/{pid}/ns/{kind}").open("rb") as namespace:
            _check(_libc.setns(namespace.fileno(), _CLONE_NEW[kind]), f"enter the {kind} namespace of process {pid}")
        yield


@contextlib.contextmanager
def _and_back(kind: str) -> Iterator[None]:
    with Path(f"/proc/thread-self/ns/{kind}").open("rb") as own:
        try:
            yield
        finally:
            _check(_libc.setns(own.fileno(), _CLONE_NEW[kind]), f"come back to the own {kind} namespace")


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise NodesUnavailableError(
            f"found no way to {what} ({os.strerror(number)}), expected CAP_SYS_ADMIN: run as root"
        )
