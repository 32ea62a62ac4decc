"""Prints a script's view of its interpreter, then ends as its first argument requires."""

import atexit
import multiprocessing
import os
import pickle
import re
import sys
import threading


class Local:
    """Pickled by reference to `__main__`."""


def double(number: int) -> tuple[int, str]:
    return 2 * number, __name__


def show() -> None:
    for name, value in sorted(globals().items()):
        if not callable(value) and name != "__loader__":
            print(name, type(value).__name__, re.sub("0x[0-9a-f]+", "", str(value)))
    loader = globals()["__loader__"]
    print(type(loader).__name__, getattr(loader, "path", None), getattr(loader, "name", None))
    print(sys.argv, sys.path, sys.modules["__main__"].__dict__ is globals(), pickle.dumps(Local()))


def end(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("from the script")
        case "chain":
            try:
                int("x")
            except ValueError as error:
                raise RuntimeError("second") from error
        case "exit":
            sys.exit(3)
        case "exit text":
            sys.exit("a text")
        case "interrupt":
            raise KeyboardInterrupt
        case "hook":
            sys.excepthook = lambda *_: int("y")
            raise ValueError("from the script")
        case "os exit":
            os._exit(7)
        case "thread":
            threading.Thread(target=lambda: print("a thread ends after the script")).start()
        case "spawn":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))


if __name__ == "__main__":
    atexit.register(lambda: print("atexit", __name__, sys.modules["__main__"].__dict__ is globals()))
    show()
    end(sys.argv[1] if len(sys.argv) > 1 else "")
