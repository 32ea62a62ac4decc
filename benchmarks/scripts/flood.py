"""A neighbour without the job's secret: it opens useless connections to one port until SIGTERM.

`flood.py PORT A_SECOND HELD MANAGERS_PUBLIC_KEY COUNTS`. It opens `A_SECOND` connections a second, of each kind in
turn. The newest `HELD` plain connections stay open, and half as many handshakes. The number of connections of each kind
is written into the file COUNTS twice a second.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

import zmq

HOST = "127.0.0.1"
WRITE_S = 0.5
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Greeting of ZMTP 3.1, which precedes a handshake."""
RAW = {
    "silent": lambda: b"",
    "noise": lambda: os.urandom(300),
    "half a greeting": lambda: SIGNATURE + b"\x03",
    "half a handshake": lambda: GREETING + b"\x04\xc8\x05HELLO",
}
"""Bytes that a plain connection sends before it falls silent, by kind."""
SOCKETS = ("no key", "another manager's key", "an own key")
"""Whole handshakes: without CURVE, for a manager with another key, and for this one from a peer that is no agent."""


class Flood:
    """Open connections, and the number of those opened so far."""

    def __init__(self, port: int, held: int, managers_key: bytes) -> None:
        self.done: Counter[str] = Counter()
        self._port, self._held, self._managers_key = port, held, managers_key
        self._raw: deque[socket.socket] = deque()
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, held + 64)
        self._dealers: deque[zmq.Socket[bytes]] = deque()

    def open(self, number: int) -> None:
        """Open one more connection."""
        kinds = (*RAW, *SOCKETS)
        kind = kinds[number % len(kinds)]
        try:
            if kind in RAW:
                self._open_raw(RAW[kind]())
            else:
                self._open_dealer(kind)
        except OSError:  # zmq.ZMQError is no OSError, and ends the flood
            self.done["not opened"] += 1
        else:
            self.done[kind] += 1

    def _open_raw(self, words: bytes) -> None:
        link = socket.create_connection((HOST, self._port), 1.0)
        self._raw.append(link)
        link.setblocking(False)
        if words:
            link.sendall(words)
        if len(self._raw) > self._held:
            self._leave(self._raw.popleft())

    def _leave(self, link: socket.socket) -> None:
        """Close a connection. Count it if the manager had closed it before."""
        with link:
            try:
                while link.recv(4096):
                    pass
                self.done["ended by the manager"] += 1
            except BlockingIOError:
                pass
            except OSError:
                self.done["ended by the manager"] += 1

    def _open_dealer(self, kind: str) -> None:
        dealer = self._context.socket(zmq.DEALER)
        self._dealers.append(dealer)
        dealer.linger = 0
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        if kind != SOCKETS[0]:
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = zmq.curve_keypair()[0] if kind == SOCKETS[1] else self._managers_key
        dealer.connect(f"tcp://{HOST}:{self._port}")
        with suppress(zmq.Again):
            dealer.send(b"let me in", zmq.NOBLOCK)
        if len(self._dealers) > self._held // 2:
            self._dealers.popleft().close(0)

    def close(self) -> None:
        """Close all connections."""
        for link in self._raw:
            self._leave(link)
        self._context.destroy(linger=0)


def write(path: Path, counts: Counter[str]) -> None:
    """Write the counts into the file as a whole, or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(counts))
    fresh.replace(path)


def main() -> None:
    """Open connections until SIGTERM."""
    port, a_second, held, managers_key, counts = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    flood = Flood(int(port), int(held), managers_key.encode())
    began_s = written_s = time.monotonic()
    number = 0
    while not over.wait(max(0.0, began_s + number / float(a_second) - time.monotonic())):
        flood.open(number)
        number += 1
        if time.monotonic() - written_s > WRITE_S:
            written_s = time.monotonic()
            write(Path(counts), flood.done)
    flood.close()
    write(Path(counts), flood.done)


if __name__ == "__main__":
    main()
