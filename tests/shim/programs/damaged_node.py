"""An agent's behaviour with damaged libraries: `damaged_node.py INSTALLATION LIBRARY DAMAGED…`.

Puts each damaged library in the library's place and reports on it, in a line of JSON each.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import taskd

assert str(taskd.__file__).startswith(sys.argv[1]), taskd.__file__
from taskd.runtime.agent.given import preload  # noqa: E402
from taskd.runtime.agent.rankfiles import RankFiles  # noqa: E402
from taskd.runtime.agent.shape import Shape  # noqa: E402
from taskd.runtime.box.recorder import open_recorder  # noqa: E402
from taskd.wire.kinds import LocalRank  # noqa: E402

said: list[str] = []


class Ear(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(record.getMessage())


logging.getLogger().addHandler(Ear(logging.WARNING))
for damaged in map(Path, sys.argv[3:]):
    damaged.replace(sys.argv[2])
    files = RankFiles(Path(sys.argv[1]) / "run", "job")
    boxes = [files.prepare(LocalRank(rank), 0, 0, Shape(), joins=False).blackbox for rank in range(3)]
    given = [preload() for _ in range(3)][-1]
    files.close()
    child = subprocess.run(["/bin/true"], env={**os.environ, **given}, capture_output=True, check=False)
    told = getattr(open_recorder(), "reason", "")
    print(json.dumps([boxes[0] is not None, given, child.returncode, child.stderr.decode(), said, told]), flush=True)
    said.clear()
