"""The background load of a job is its rank's work beside training, and that of no other process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.overhead import beside_rank_s, beside_training_s

_BUSY = """
import hashlib, threading, time

def work():
    end_s = time.thread_time() + 0.3
    while time.thread_time() < end_s:
        hashlib.sha256(bytes(1 << 20))

if {inside!r} == "training":
    work()
else:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print("done", flush=True)
input()
"""


@contextmanager
def busy(inside: str) -> Iterator[int]:
    """Yield a process of which one thread has used 0.3 s of a processor."""
    program = [sys.executable, "-c", _BUSY.format(inside=inside)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"done\n"
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize(("inside", "lowest_s", "highest_s"), [("training", 0, 0.1), ("another", 0.25, 0.6)])
def test_the_thread_that_trains_does_not_count(inside: str, lowest_s: float, highest_s: float) -> None:
    with busy(inside) as pid:
        assert lowest_s <= beside_training_s(pid) <= highest_s  # the thread has ended, and still counts


def test_other_processes_count_for_themselves() -> None:
    with busy("training") as rank, busy("training") as warm:
        assert beside_rank_s(warm, rank) >= 0.25
        assert beside_rank_s(warm, warm) == 0
        assert beside_training_s(warm) <= 0.1
