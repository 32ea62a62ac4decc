"""Looks up kernels of nodes by names that only a silent name server could resolve: `slow_names.py RESOLV_CONF`.

Needs a network namespace and a mount namespace of its own. Prints the time of the look-ups, the threads, the answers.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

from taskd.runtime.manager.kernels import Kernels

NAMES = 100
LIMIT_S = 20.0

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
server.settimeout(LIMIT_S)
node = socket.create_server(("127.0.0.1", 0))

kernels, begun_s = Kernels(), time.monotonic()
for number in range(NAMES):
    kernels.ask(f"agent {number}", f"node-{number}.example", 9601)
kernels.ask("near", "127.0.0.1", node.getsockname()[1])
answers: list[tuple[str, bool]] = []
while not answers and time.monotonic() < begun_s + LIMIT_S:
    answers = kernels.answers()
took_s, threads = time.monotonic() - begun_s, threading.active_count() - 1
try:
    asked = b"node-" in server.recv(512)
except TimeoutError:
    asked = False
more = kernels.answers()
kernels.close()
sys.stdout.write(json.dumps({"took_s": took_s, "threads": threads, "answers": answers + more, "asked": asked}))
sys.stdout.flush()
os._exit(0)  # some threads still wait for the name server
