"""A process that watches its own child as if that were its agent, and both wait."""

import os
import signal

from taskd.runtime.box.recorder import Recorder

r = Recorder()
agent = os.fork()
if agent:
    r.watch_parent(agent)
signal.pause()
