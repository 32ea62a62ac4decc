"""What the core is compiled from and how, as the build itself has it."""

import importlib
import sys
from typing import Any

from tests.shim.armed import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "csrc"))
build_libs: Any = importlib.import_module("build_libs")
objects: Any = importlib.import_module("objects")
