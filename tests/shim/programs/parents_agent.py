"""An agent with one worker, and a neighbour in its own process group: `parents_agent.py GATE leads|follows WORKER…`."""

import os
import signal
import subprocess
import sys

neighbour = subprocess.Popen(["sleep", "60"])
os.environ["TASKD_AGENT_PID"] = str(os.getpid())
os.environ["LD_PRELOAD"] = sys.argv[1]
subprocess.Popen([sys.executable, *sys.argv[3:]], start_new_session=sys.argv[2] == "leads")
print(neighbour.pid, flush=True)
signal.pause()
