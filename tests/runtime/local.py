"""Real processes at the agent's Unix socket, and waiting for their messages."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.wire.messages import FromLocal
from tests.launch import Launcher

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0
Heard = tuple[Peer, FromLocal | None]


def readable(descriptor: int, limit_s: float = LIMIT_S) -> bool:
    """Wait until a descriptor has data to read. Return False if none comes in time."""
    return bool(select.select([descriptor], [], [], limit_s)[0])


class Ear:
    """Receiver of a server's messages."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.heard: list[Heard] = []

    def until(self, wanted: Callable[[Peer, FromLocal | None], bool]) -> Heard:
        """Return the next message for which `wanted` holds. None in place of a message is the end of a process."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            for index, (peer, message) in enumerate(self.heard):
                if wanted(peer, message):
                    return self.heard.pop(index)
            assert readable(self.server.fileno(), end_s - time.monotonic()), f"not heard; only {self.heard}"
            self.heard += self.server.receive()


def start(launcher: Launcher, program: str, *arguments: object) -> "subprocess.Popen[bytes]":
    """Start one of the test programs."""
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT)])}
    return launcher.start([sys.executable, PROGRAMS / program, *map(str, arguments)], env=env)
