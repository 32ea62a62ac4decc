"""Actions directly before or after a module's first import, without importing it.

Rules:

1. A module that is never imported costs nothing. An imported one keeps its own loader, spec and source.
2. One shot: the finder removes itself from `sys.meta_path` when its module begins to load or to run. A mere search for
   the module does not import it (`importlib.util.find_spec`, which transformers calls for torch).
"""

import importlib.machinery
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType

from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Call `action(module)` once: now if the module is there, else at the end of its first import.

    A module that is being imported at this moment counts as there, even if it is incomplete.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    sys.meta_path.insert(0, _OneShotFinder(name, action))


def before_import(name: str, action: Callable[[], None]) -> None:
    """Call `action()` once, when the module's first import begins. It may call `after_import` for the same name."""
    sys.meta_path.insert(0, _Herald(name, action))


def is_initializing(name: str) -> bool:
    """Return whether the module is being imported at this moment."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


class _Finder(ABC):
    """Finder that finds a module as the others do, and shadows a method of the loader that they return."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._asking: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self.name or thread in self._asking:  # another hook of this name queries all others, too
            return None
        self._asking.add(thread)
        try:
            spec = _ask_all(fullname, path, target)
        finally:
            self._asking.discard(thread)
        if spec is not None:
            self.shadow(spec)
        return spec

    @abstractmethod
    def shadow(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Shadow a method of the loader, for one import."""

    def leave(self) -> bool:
        """Remove this finder from `sys.meta_path`. Returns False if it was gone already."""
        present = self in sys.meta_path
        if present:
            sys.meta_path.remove(self)
        return present


class _Herald(_Finder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        super().__init__(name)
        self._action = action

    def shadow(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Shadow `create_module`, the first step of an import: the module is in `sys.modules` only after it."""
        loader = spec.loader
        stock = getattr(loader, "create_module", None)
        if stock is None:
            return

        def create_module(given: importlib.machinery.ModuleSpec) -> ModuleType | None:
            vars(loader).pop("create_module", None)
            self._begin(spec)
            module: ModuleType | None = stock(given)
            return module

        vars(loader)["create_module"] = create_module

    def _begin(self, spec: importlib.machinery.ModuleSpec) -> None:
        if not self.leave():
            return
        before = sys.meta_path[:]
        self._action()
        for finder in sys.meta_path[:]:  # this import has queried the finders already, and skips new ones
            if isinstance(finder, _OneShotFinder) and finder not in before and finder.name == self.name:
                finder.shadow(spec)


class _OneShotFinder(_Finder):
    def __init__(self, name: str, action: Action) -> None:
        super().__init__(name)
        self._action = action

    def shadow(self, spec: importlib.machinery.ModuleSpec) -> None:
        _call_around(spec, self.leave, self._action)


def _ask_all(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path[:]:
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find else None
        if spec is not None:
            return spec
    return None


def _call_around(spec: importlib.machinery.ModuleSpec, before: Callable[[], object], after: Action) -> None:
    """Shadow `exec_module` of this one loader object for this one import."""
    loader = spec.loader
    stock = getattr(loader, "exec_module", None)
    if stock is None:
        return

    def exec_module(module: ModuleType) -> Steps:
        vars(loader).pop("exec_module", None)  # another hook of this kind may have removed it already
        before()
        yield ORIGINAL
        after(module)

    vars(loader)["exec_module"] = around(stock, exec_module)
