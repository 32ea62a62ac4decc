"""Process 1 of a node: sets up the node's own parts, reports that, and collects orphans until its stdin ends.

`tests/nodes.py` starts it in the node's namespaces. All processes of the node end with it.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_OWN = Path(__file__).with_name("nodes_own.sh")


def collect(_number: int, _frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> None:
    socket.sethostname(sys.argv[1])
    subprocess.run(["sh", "-e", _OWN], check=True)
    signal.signal(signal.SIGCHLD, collect)
    os.write(1, b"\n")
    while os.read(0, 1):
        pass


main()
