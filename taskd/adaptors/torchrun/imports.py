"""Do something with a module directly after its first import, without importing it.

Rules:

1. A module that is never imported costs nothing; one that is keeps its own loader, spec and source.
2. One shot: the finder takes itself out of `sys.meta_path` at the moment it has found its module.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Call `action(module)` once: now if the module is there, else at the end of its first import.

    A module that is being imported at this moment counts as there, whatever it still lacks.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    sys.meta_path.insert(0, _OneShotFinder(name, action))


def is_initializing(name: str) -> bool:
    """Whether the module is being imported at this moment."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


class _OneShotFinder:
    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                _call_after(spec, self._action)
                return spec
        return None


def _call_after(spec: importlib.machinery.ModuleSpec, action: Action) -> None:
    """Shadow `exec_module` of this one loader object for this one import."""
    loader = spec.loader
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)  # another hook of this kind may have taken all away
        stock(module)
        action(module)

    vars(loader)["exec_module"] = exec_module
