"""Separation of taskd's imports from the script's, where the script has modules of the same names.

Rules:

1. taskd imports from the standard library, its own package and the installed packages, in this order. It never takes a
   module of such a name from the script's directory, the working directory or PYTHONPATH.
2. The script imports the same modules as without taskd. If its directories also have a module that taskd imported,
   taskd's is removed from `sys.modules`. taskd keeps using its own, because its modules hold references to it.
3. Modules that the interpreter itself imported at its start stay: a script could not have replaced those.
4. Imports that are not the script's cause no garbage collections in it either.
"""

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import ModuleType

from taskd.adaptors.torchrun.collector import no_collections


class ImportIsolation:
    """Context in which taskd imports; a nested one changes nothing.

    Args:
        known: names of the modules that the interpreter had by itself.
        clean: the path by which taskd imports.
    """

    def __init__(self, known: Collection[str], clean: list[str]) -> None:
        self._known = self._before = set(known)
        self._clean = clean
        self._users: list[str] = []
        self._own: dict[str, ModuleType] = {}
        self._theirs: dict[str, ModuleType] = {}
        self._path: list[str] = []
        self._depth = 0
        self._pause = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._pause.enter_context(no_collections())
        if self._users:
            self._before = set(sys.modules) | self._own.keys()
        self._theirs = _take_out(self._users)
        self._theirs |= {name: sys.modules[name] for name in self._own if name in sys.modules}
        sys.modules.update(self._own)
        self._path = list(sys.path)
        sys.path[:] = [*self._clean, *(entry for entry in self._path if entry not in self._clean)]

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._pause.close()
        sys.path[:] = self._path
        self._own.update({name: sys.modules[name] for name in self._theirs if name in sys.modules})
        for name in self._own:
            sys.modules.pop(name, None)
        sys.modules.update(self._theirs)
        self._hide()

    def open(self) -> None:
        """Let the script, which is about to begin, find its own modules first."""
        self._before = self._known
        self._users = [*_script_directories(), *_users_entries()]
        self._hide()

    def _hide(self) -> None:
        """Remove taskd's modules from `sys.modules` that the user's directories have too.

        Only imports since `_before` was taken are removed.
        """
        new = (_names_in(self._users) & sys.modules.keys()) - self._before
        hidden = {name for name in new if self._is_the_users(name)}
        if hidden:
            for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
                self._own[name] = sys.modules.pop(name)

    def _is_the_users(self, name: str) -> bool:
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return False
        found = PathFinder.find_spec(name, self._users)
        if found is None or found.origin is None:  # a namespace folder comes after all packages
            return False
        return found.origin != getattr(sys.modules.get(name), "__file__", None)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Hold the user's directories at the end of the import path. For torchrun's process, which runs no user code."""
    path, users = list(sys.path), _users_entries()
    sys.path[:] = [*(entry for entry in path if entry not in users), *users]
    theirs = _take_out(users)
    try:
        with no_collections():
            yield
    finally:
        sys.path[:] = path
        sys.modules.update(theirs)


def _take_out(directories: Collection[str]) -> dict[str, ModuleType]:
    """Remove the user's modules that have a name of the standard library from `sys.modules`. Returns them."""
    if not directories:
        return {}
    theirs = {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in sys.stdlib_module_names and _lies_in(module, directories)
    }
    for name in theirs:
        del sys.modules[name]
    return theirs


def _lies_in(module: ModuleType, directories: Collection[str]) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith(f"{os.path.dirname(os.__file__)}/"):
        return False
    return file.startswith(tuple(f"{(directory or os.getcwd()).rstrip('/')}/" for directory in directories))


def _users_entries() -> list[str]:
    """Return the path entries before the standard library: PYTHONPATH, and the entry of `python -m`."""
    library = os.path.dirname(os.__file__)
    return sys.path[: sys.path.index(library)] if library in sys.path else []


def _script_directories() -> list[str]:
    """Return the directories that the interpreter will put in front of the path."""
    if getattr(sys.flags, "safe_path", False):
        return []
    script = sys.argv[0]
    if script == "-m":
        return [os.getcwd()]
    return [script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))]


def _names_in(directories: Collection[str]) -> set[str]:
    found: set[str] = set()
    for directory in directories:
        with contextlib.suppress(OSError):
            found.update(entry.partition(".")[0] for entry in os.listdir(directory or "."))
    return found
