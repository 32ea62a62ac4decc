"""Loads taskd's core where another is loaded already: `second_core.py OTHER`."""

import ctypes
import sys

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
from taskd.runtime.box.blackbox import load_core  # noqa: E402

load_core()
