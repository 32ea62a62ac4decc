"""A rank's process with a link to its agent: `linked.py SOCKET AGENT_PID`. Ends by itself only when it is told to."""

import os
import sys
from pathlib import Path

from taskd.config.worker import WorkerConfig
from taskd.runtime.worker import WorkerLink

config = WorkerConfig(
    agent_socket=Path(sys.argv[1]),
    agent_pid=int(sys.argv[2]),
    run_dir=Path("/tmp"),
    rank=0,
    incarnation=0,
    generation=0,
)
link = WorkerLink(config, lambda: ())
os.read(int(sys.argv[3]), 1)
sys.exit(7)
