"""Sources and options with which the core is compiled, as in the build itself."""

import importlib
import sys
from typing import Any

from tests.shim.armed import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "csrc"))
build_libs: Any = importlib.import_module("build_libs")
objects: Any = importlib.import_module("objects")
