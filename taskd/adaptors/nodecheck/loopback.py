"""Bytes that the node sends to itself over TCP, at the address that its collectives use.

Rules:

1. The address is the given one, else that of the interface that is set for gloo or NCCL. Else it is that of the host's
   name, or 127.0.0.1 if the name leads nowhere, as in gloo.
2. One thread sends and receives in turn, without blocking. Of some slices the fastest counts: the probe of computing
   measures delays of the process on its CPU.
3. Strangers can reach the address too: only the own connection counts.
"""

import contextlib
import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

from taskd.config.process import environment
from taskd.errors import ProbeError

_BLOCK: Final = bytes(range(251)) * 4177  # 1 MiB or so, and no power of two: shifted bytes differ
_SLICE_BLOCKS: Final = 4
_SLICES: Final = 20
_BUDGET_S: Final = 0.1
_STALL_S: Final = 5.0
_BACKLOG: Final = 128
_SIOCGIFADDR: Final = 0x8915
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")


def loopback(address: str) -> float:
    """Return the rate of sending and receiving in 10**9 bytes a second; `address` "" is looked up.

    Raises:
        ProbeError: there is no connection, or bytes came back changed.
    """
    chosen = address or own_address()
    try:
        with _connected(chosen) as (sender, receiver):
            rates: list[float] = []
            start_s = time.perf_counter()
            while not rates or (len(rates) < _SLICES and time.perf_counter() - start_s < _BUDGET_S):
                rates.append(_slice(sender, receiver))
    except OSError as error:
        raise ProbeError(
            f"no TCP connection of the node to itself at {chosen} ({error.strerror or error}), expected its own "
            "address: check the interface, GLOO_SOCKET_IFNAME and /etc/hosts"
        ) from error
    return max(rates)


def own_address() -> str:
    """Return this node's address for collectives. Raise `ProbeError` if an interface is set that has no address."""
    env = environment()
    for variable in _INTERFACES:
        name = env.get(variable, "").split(",")[0].lstrip("=")
        if name and not name.startswith("^"):
            with contextlib.suppress(OSError):
                return _address_of(name)
            names = ", ".join(interface for _, interface in socket.if_nameindex())
            if variable == "GLOO_SOCKET_IFNAME":  # NCCL takes prefixes, and IPv6 addresses
                raise ProbeError(
                    f"{variable}: found no interface {name!r} with an IPv4 address, expected one of {names}"
                )
    try:
        address = str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
            trial.bind((address, 0))
    except OSError:
        return "127.0.0.1"
    return address


def _address_of(interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return socket.inet_ntoa(fcntl.ioctl(asker, _SIOCGIFADDR, request)[20:24])


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as listener:
        listener.bind(where)
        listener.listen(_BACKLOG)
        listener.settimeout(_STALL_S)
        with (
            socket.create_connection(listener.getsockname()[:2], _STALL_S) as sender,
            _accepted(listener, sender) as receiver,
        ):
            sender.setblocking(False)
            receiver.setblocking(False)
            yield sender, receiver


def _accepted(listener: socket.socket, sender: socket.socket) -> socket.socket:
    """Return our own connection. Any other is closed: a stranger's data is no fault of this node."""
    end_s = time.monotonic() + _STALL_S
    while True:
        receiver, peer = listener.accept()
        if peer == sender.getsockname():
            return receiver
        receiver.close()
        if time.monotonic() > end_s:
            raise TimeoutError(f"strangers alone came for {_STALL_S:g} s")


def _slice(sender: socket.socket, receiver: socket.socket) -> float:
    """Send and receive some blocks; return the rate."""
    start_s = time.perf_counter()
    for _ in range(_SLICE_BLOCKS):
        got, unsent, came = bytearray(len(_BLOCK)), memoryview(_BLOCK), 0
        while came < len(got):
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[sender.send(unsent) :]
            elif not select.select([receiver], [], [], _STALL_S)[0]:
                raise TimeoutError(f"nothing came for {_STALL_S:g} s")
            with contextlib.suppress(BlockingIOError):
                came += receiver.recv_into(memoryview(got)[came:])
        if got != _BLOCK:
            raise ProbeError("bytes that the node sent to itself came back changed; its memory or network is faulty")
    return _SLICE_BLOCKS * len(_BLOCK) / (time.perf_counter() - start_s) / 1e9
