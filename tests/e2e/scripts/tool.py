#!/usr/bin/env python3
"""A wrapper in Python, like a profiler: the rank is its child."""

import os
import subprocess
import sys

sys.exit(subprocess.run([os.environ["PYTHON"], *sys.argv[1:]], check=False).returncode)
