"""A worker that reports its progress, and waits."""

import signal

from taskd.runtime.box.recorder import BoxPhase, Recorder

r = Recorder()
r.step(41)
r.step(42)
r.phase(BoxPhase.RESTORING)
r.gil_beat()
signal.pause()
