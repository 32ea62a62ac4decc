"""Traces of a hook on a module's import: `hooked.py FOLDER`, in which there is a module `fresh`."""

import importlib
import importlib.util
import sys

from taskd.adaptors.torchrun.imports import after_import

sys.path.insert(0, sys.argv[1])
before = sys.meta_path[:]
seen: list[int] = []
after_import("fresh", lambda module: seen.append(module.value))
after_import("fresh", lambda _module: seen.append(0))
assert importlib.util.find_spec("fresh") is not None  # as transformers searches for torch
assert not seen
fresh = importlib.import_module("fresh")
after_import("fresh", lambda module: seen.append(2))
importlib.reload(fresh)
loader = fresh.__loader__
print(seen, sys.meta_path == before, type(loader).__name__, vars(loader).keys() & {"exec_module"})
