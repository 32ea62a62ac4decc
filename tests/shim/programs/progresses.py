"""A worker that tells of its progress, and waits."""

import signal

from taskd.runtime.box.recorder import Phase, Recorder

r = Recorder()
r.step(41)
r.step(42)
r.phase(Phase.RESTORING)
r.gil_beat()
signal.pause()
