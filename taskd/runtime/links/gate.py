"""Access to a listening socket with CURVE: ZeroMQ asks about each key, and we answer (ZAP, RFC 27)."""

from typing import Final

import zmq
from zmq.utils import z85

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"taskd"
_QUESTIONS_PER_CALL: Final = 256


class Gate:
    """Admission of the one welcome key pair. One for each context, before its socket is bound.

    Args:
        context: that of the listening socket.
        listener: the socket, which gets our own secret key too.
        own_secret: our end's secret key, in Z85.
        welcome: the other end's public key, in Z85.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        listener: "zmq.Socket[bytes]",
        own_secret: bytes,
        welcome: bytes,
    ) -> None:
        self._welcome = z85.decode(welcome)
        self.socket: Final[zmq.Socket[bytes]] = context.socket(zmq.REP)
        """Socket that is readable when ZeroMQ has a question."""
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)
        listener.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        listener.setsockopt(zmq.CURVE_SERVER, 1)
        listener.setsockopt(zmq.CURVE_SECRETKEY, own_secret)

    def answer(self) -> None:
        """Answer the questions that are there now. Never waits."""
        for _ in range(_QUESTIONS_PER_CALL):
            try:
                version, request, _domain, _address, _identity, mechanism, *keys = self.socket.recv_multipart(
                    zmq.NOBLOCK
                )
            except zmq.Again:
                return
            known = mechanism == b"CURVE" and keys == [self._welcome]
            status, text = (b"200", b"OK") if known else (b"400", b"not a key of this job")
            self.socket.send_multipart([version, request, status, text, b"", b""])
