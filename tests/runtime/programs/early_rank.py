"""A rank that trains as soon as it has started: `early_rank.py SOCKET RANK INCARNATION GENERATION`.

Prints "started" when all is sent to the agent, then the name of each message that it receives.
"""

import os
import socket
import sys

from taskd.wire.codec import MAX_LOCAL_BYTES, decode_to_local, encode
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, Hello, Stage, WorkerReport

path = sys.argv[1]
rank, incarnation, generation = map(int, sys.argv[2:5])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect(path)
    link.send(encode(Hello(role="worker", pid=os.getpid(), rank=JobRank(rank), incarnation=incarnation)))
    report = WorkerReport(generation=generation, stage=Stage.TRAINING, step=-1, condition=Condition.EMPTY)
    link.send(encode(report))
    print("started", flush=True)
    while frame := link.recv(MAX_LOCAL_BYTES):
        print(type(decode_to_local(frame)).__name__, flush=True)
