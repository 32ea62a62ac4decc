"""Do something with a module directly after its first import, without importing it.

Rules:

1. A module that is never imported costs nothing; one that is keeps its own loader, spec and source.
2. One shot: the finder takes itself out of `sys.meta_path` as its module begins to run. Who only asks where the module
   is (`importlib.util.find_spec`, as transformers asks for torch) does not import it.
"""

import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

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


def before_import(name: str, action: Callable[[], None]) -> None:
    """Call `action()` once, when somebody first looks for the module. It may call `after_import` for the same name."""
    sys.meta_path.insert(0, _Herald(name, action))


def is_initializing(name: str) -> bool:
    """Whether the module is being imported at this moment."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


class _Herald:
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        self._action()
        return _ask_all(fullname, path, target)  # the import that looks does not see finders that are new in front


class _OneShotFinder:
    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action
        self._asking: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self._name or thread in self._asking:  # another hook of this name asks all others, too
            return None
        self._asking.add(thread)
        try:
            spec = _ask_all(fullname, path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None:
            _call_around(spec, self._leave, self._action)
        return spec

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _ask_all(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path[:]:
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find else None
        if spec is not None:
            return spec
    return None


def _call_around(spec: importlib.machinery.ModuleSpec, before: Callable[[], None], after: Action) -> None:
    """Shadow `exec_module` of this one loader object for this one import."""
    loader = spec.loader
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module: ModuleType) -> Steps:
        vars(loader).pop("exec_module", None)  # another hook of this kind may have taken all away
        before()
        yield ORIGINAL
        after(module)

    vars(loader)["exec_module"] = around(stock, exec_module)
