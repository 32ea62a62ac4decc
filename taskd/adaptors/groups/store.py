"""One client of the job's TCPStore, kept over generations; removal of older generations' keys from the store.

The store itself lives in an agent, so it survives any rank. All keys of a generation start with `taskd/<key of the
store>/<generation>/`.
"""

import logging
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from taskd.adaptors.groups.calls import GroupCall
from taskd.adaptors.seams.worker import STORED
from taskd.errors import RebuildError

_log = logging.getLogger(__name__)


def prefix(key: str, generation: int) -> str:
    """Return the prefix of all store keys of one generation; `key` is the store's own, as in `WorldPlan`."""
    return f"{_root(key)}/{generation}"


def _root(key: str) -> str:
    return f"taskd/{key}" if key else "taskd"


class StoreLink:
    """The connection to one endpoint at a time."""

    def __init__(self) -> None:
        self._client: TCPStore | None = None
        self._endpoint = ("", 0)
        self._sockets: frozenset[tuple[int, int]] = frozenset()

    def connect(self, host: str, port: int, timeout_s: float) -> TCPStore:
        """Return a client of `host`:`port`, the kept one if it is of that endpoint.

        Raises:
            RebuildError: nothing answers there within `timeout_s`.
        """
        timeout = timedelta(seconds=timeout_s)
        if self._client is not None and self._endpoint == (host, port):
            self._client.set_timeout(timeout)
            return self._client
        before = _sockets_to(port)
        try:
            client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise RebuildError(
                f"no store answers at {host}:{port} within {timeout_s:g} s: {error}; "
                "check that the agent which hosts it lives and that the address can be reached from this node"
            ) from error
        self._sockets = _sockets_to(port) - before
        self._client, self._endpoint = client, (host, port)
        return client

    def drop(self) -> None:
        """Forget the client; the next `connect` makes a new one."""
        self._client = None
        self._sockets = frozenset()

    def interrupt(self) -> int:
        """Shut the client's socket down, so a thread that waits for the store raises; return how many were shut.

        May be called from any thread. The client is useless afterwards and is dropped.
        """
        mine = self._sockets & _sockets_to(self._endpoint[1])
        for descriptor, _ in mine:
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        self.drop()
        return len(mine)


def _sockets_to(port: int) -> frozenset[tuple[int, int]]:
    """Return (descriptor, inode) of this process's TCP sockets whose peer listens at `port`."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] == port:
                    found.add((descriptor, status.st_ino))
        except OSError:  # closed meanwhile, or not connected
            continue
    return frozenset(found)


def sweep(client: TCPStore, key: str, generation: int, calls: Sequence[GroupCall]) -> int:
    """Delete the keys of all generations before `generation`; return how many were deleted.

    For one rank of the world, after all have formed `generation` by `calls`. A store that is gone is no error here.
    """
    deleted = 0
    pattern = re.compile(rf"/*{re.escape(_root(key))}/(\d+)/")
    try:
        for name in STORED.find().use(client, lambda: _keys(client, key, generation, calls)):
            found = pattern.match(name)
            if found is not None and int(found[1]) < generation:
                deleted += client.delete_key(name)
    except RuntimeError as error:
        _log.debug("keys of generations before %d stay in the store: %s", generation, error)
    return deleted


def _keys(client: TCPStore, key: str, generation: int, calls: Sequence[GroupCall]) -> Iterator[str]:
    """Yield gloo's keys of the generations not swept so far, which the store counts. NCCL's keys are few."""
    swept = f"{_root(key)}-swept"
    first = client.add(swept, 0)
    for old in range(first, generation):
        for call in calls:
            names = [calls[0].name] if call.is_default else [calls[0].name, call.name]
            group = "//".join([f"{prefix(key, old)}/default_pg/{names[0]}", *names[1:], "cpu", "0"])
            yield from (f"{group}/{rank}" for rank in range(call.size))
    client.add(swept, generation - first)


def destroy(retired: list[Any], client: TCPStore | None, key: str, generation: int, calls: Sequence[GroupCall]) -> None:
    """Destroy groups of older generations, and with a `client` their keys. Takes as long as their threads need."""
    if client is not None:
        sweep(client, key, generation, calls)
    retired.clear()
