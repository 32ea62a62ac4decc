"""A launcher that only checks whether torch is there, as accelerate's does: the rank is its child."""

import importlib.util
import subprocess
import sys

assert importlib.util.find_spec("torch") is not None
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], check=False).returncode)
