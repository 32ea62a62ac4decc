"""A rank's process with a link to its agent: `linked.py SOCKET AGENT_PID FIFO`. Ends when the FIFO closes."""

import sys
from pathlib import Path

from taskd.config.worker import WorkerConfig
from taskd.runtime.worker.worker import WorkerLink
from taskd.wire.kinds import JobRank

config = WorkerConfig(
    agent_socket=Path(sys.argv[1]),
    agent_pid=int(sys.argv[2]),
    run_dir=Path("/tmp"),
    rank=JobRank(0),
    incarnation=0,
    generation=0,
)
link = WorkerLink(config, lambda: ())
Path(sys.argv[3]).read_bytes()
sys.exit(7)
