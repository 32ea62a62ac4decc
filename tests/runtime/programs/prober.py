"""A standby that answers an order to check its node: `prober.py SOCKET WHAT`.

WHAT: "well", "ill" (its own check fails), "dies" (it kills itself), "waits" (it never answers), "stuck" (in its trial).
"""

import os
import signal
import socket
import sys

from taskd.wire.checks import Own, TrialResult
from taskd.wire.codec import MAX_LOCAL_BYTES, decode_to_local, encode
from taskd.wire.messages import Hello
from taskd.wire.probes import ProbeResult
from taskd.wire.standbys import Prepare, Probed, RunCheck

link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(sys.argv[1])
link.send(encode(Hello(role="standby", pid=os.getpid())))
while isinstance(message := decode_to_local(link.recv(MAX_LOCAL_BYTES)), Prepare):
    pass
assert isinstance(message, RunCheck)
order, what = message.order, sys.argv[2]
print("asked", order.local_rank, order.own, order.trial and order.trial.peer, flush=True)
if what == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "waits":
    link.recv(MAX_LOCAL_BYTES)
well = what in ("well", "stuck")
own = Own(ok=well, cause="" if well else "no device", compute_tflops=2.0 - order.local_rank)
if what == "stuck":
    link.send(encode(Probed(result=ProbeResult(local_rank=order.local_rank, own=own))))
    link.recv(MAX_LOCAL_BYTES)
trial = TrialResult(peer=order.trial.peer, ok=True, gbps=1.0) if order.trial else None
answer = ProbeResult(local_rank=order.local_rank, own=own if order.own else None, trial=trial)
link.send(encode(Probed(result=answer)))
