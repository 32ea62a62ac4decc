"""A node of a job, without torch: a real agent's directory and socket, and processes with the boxes of ranks.

    python chaos_node.py RUN_DIR JOB RANKS CHECKS FIRST

Rules:

1. The ranks are real recorders that commit a step every few milliseconds. They are numbered from FIRST on.
2. Until CHECKS of them were started, there is always one process with the name `taskd-check`.
3. It lists its processes in RUN_DIR/node.json each time that one is started, and ends with its test.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from taskd.core.nodecheck.probes import CHECK_NAME
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.wire.kinds import LocalRank

RANK = Path(__file__).with_name("chaos_rank.py")


def main() -> None:
    run_dir, job = Path(sys.argv[1]), sys.argv[2]
    ranks, checks, first = map(int, sys.argv[3:])
    files = RankFiles(run_dir, job)
    server = files.server(listens=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    children = {}
    try:
        for local_rank in map(LocalRank, range(ranks)):
            config = files.prepare(local_rank, 0, 0, Shape(), joins=False)
            command = [sys.executable, str(RANK), str(config.blackbox), str(first + local_rank)]
            children[f"rank {first + local_rank}"] = subprocess.Popen(
                command, env={**os.environ, **config.environment()}
            )
        named = run_dir / CHECK_NAME
        named.symlink_to("/bin/sleep")
        names = iter(range(checks))
        check = None
        while True:
            if (check is None or check.poll() is not None) and next(names, None) is not None:
                check = subprocess.Popen([named, "1000"])
                children[f"check {check.pid}"] = check
            tell(run_dir, children)
            time.sleep(0.01)
    finally:
        for child in children.values():
            child.kill()
            child.wait()
        server.close()
        files.close()


def tell(run_dir: Path, children: "dict[str, subprocess.Popen[bytes]]") -> None:
    known, told = (
        json.dumps({"agent": os.getpid(), **{name: one.pid for name, one in children.items()}}),
        run_dir / "node.json",
    )
    if not told.exists() or told.read_text() != known:
        unfinished = run_dir / "node.new"
        unfinished.write_text(known)
        unfinished.rename(told)


main()
