"""Builds an extension as torch does, but for the compiler: `builder.py LOCK stock|watched [COMMAND …]`.

It prints a line for each stage and builds until it receives a line. A command takes the compiler's place. With `fork`,
it has a child that inherits all its open files.

It loads only this one file of torch: all of torch takes seconds to load, and there are many builders.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from types import ModuleType

for name in ("torch", "torch.utils"):
    found = importlib.util.find_spec(name)
    assert found is not None
    sys.modules[name] = package = ModuleType(name)
    package.__path__ = list(found.submodule_search_locations or ())
from torch.utils import file_baton  # noqa: E402

if sys.argv[2] == "watched":
    from taskd.adaptors.batons import watch_batons

    watch_batons(file_baton)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def compile_with(command: list[str]) -> object:
    """Start the compiler, or fork. Return the child's pid if there is a child."""
    if command != ["fork"]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL).pid if command else ""
    child = os.fork()
    if not child:
        signal.pause()
    return child


baton = file_baton.FileBaton(sys.argv[1])
say("begins")
if baton.try_acquire():
    say("builds", compile_with(sys.argv[3:]))
    sys.stdin.readline()
    baton.release()
    say("built")
else:
    say("waits")
    baton.wait()
    say("came")
