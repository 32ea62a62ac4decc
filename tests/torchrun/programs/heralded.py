"""Calls before a module's import, and their time: `heralded.py FOLDER`, in which there is a module `fresh`."""

import importlib
import importlib.util
import sys

from taskd.adaptors.torchrun.imports import after_import, before_import

sys.path.insert(0, sys.argv[1])
before = sys.meta_path[:]
seen: list[object] = []


def begin() -> None:
    seen.append("fresh" in sys.modules)
    after_import("fresh", lambda module: seen.append(module.value))


after_import("fresh", lambda _module: seen.append(0))
before_import("fresh", begin)
assert importlib.util.find_spec("fresh") is not None  # as accelerate's launcher searches for torch
assert importlib.util.find_spec("fresh") is not None
assert not seen
fresh = importlib.import_module("fresh")
importlib.reload(fresh)
loader = fresh.__loader__
print(seen, sys.meta_path == before, type(loader).__name__, vars(loader).keys() & {"create_module", "exec_module"})
