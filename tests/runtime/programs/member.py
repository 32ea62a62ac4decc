"""A template or standby in the agent's view: `member.py SOCKET ROLE THREADS`. Prints each message that it receives."""

import os
import socket
import sys

from taskd.wire.codec import MAX_LOCAL_BYTES, decode_to_local, encode
from taskd.wire.messages import Hello

path, role, threads = sys.argv[1:4]
hello = encode(Hello(role=role, pid=os.getpid(), threads=int(threads)))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect(path)
    link.send(encode(Hello(role=role, pid=os.getpid(), threads=0)) if role == "template" else hello)
    if role == "template":
        link.send(hello)
    while frame := link.recv(MAX_LOCAL_BYTES):
        message = decode_to_local(frame)
        print(type(message).__name__, getattr(message, "count", ""), *getattr(message, "names", ()), flush=True)
        if type(message).__name__ == "Modules":
            link.send(hello)
