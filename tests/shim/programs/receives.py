"""Receives by the fake gloo of each library, twice each; or once by a jump: `receives.py LIBRARY… | jump LIBRARY`."""

import ctypes
import sys

from taskd.runtime.box.recorder import Recorder

r = Recorder()
if sys.argv[1] == "jump":
    print(ctypes.CDLL(sys.argv[2]).receive_by_a_jump() & 255, r.census().waits_hooked)
else:
    peers = [ctypes.CDLL(path) for path in sys.argv[1:]]
    print([peer.receive_one() for peer in peers for _ in range(2)], r.census().waits_hooked)
