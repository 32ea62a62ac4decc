"""A worker whose box is cut before it may go on: `cut_worker.py BOX GO STATEMENTS`. It ends with the statements."""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(3), 1)
r.phase(BoxPhase.TRAINING)
r.step(1)
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
r.step(2)
r.await_data()
r.got_data(5)
r.gil_beat()
r.phase(BoxPhase.PAUSED)
ticket = r._core.taskd_enter(257, 7, 8, 0, -1)
r._core.taskd_leave(ticket)
r.last_words(ValueError("it goes on"))
assert r.break_collectives() == 0
r.mend()
time.sleep(0.6)  # three beats of the native thread
assert r.attached
print("went on", r.census().broken, flush=True)


def read_behind_the_end(path: str) -> None:
    """Read behind the end of a mapped file of our own."""
    import mmap
    import os

    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8192)
        os.truncate(path, 0)
        memory[5000]


exec(sys.argv[3])
