"""A script's view of the stack below it, of its own source, and of processes that are spawned from it."""

import cProfile
import inspect
import multiprocessing
import pickle
import pstats
import sys


class Own:
    """Pickled by reference."""


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    print([(frame.filename, frame.function) for frame in inspect.stack()])
    print(sys.orig_argv, sys.argv)
    print(inspect.getsource(double), inspect.getsourcefile(Own), inspect.getmodule(double))
    print(pickle.dumps(Own()), sys.modules["__main__"].__file__, __spec__ and __spec__.name)
    with cProfile.Profile() as profile:
        double(2)
    print(sorted(name for _, _, name in pstats.Stats(profile).stats))  # type: ignore[attr-defined]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
