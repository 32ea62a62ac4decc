"""A rank that records its surroundings, prints a few lines, and ends as its first argument requires. Without torch."""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

folder = Path(os.environ["TWIN_FOLDER"])
rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
action, *words = [word for word in sys.argv[1:] if not word.startswith("--local-rank=")] or ["end"]


def see() -> dict[str, Any]:
    """Return the properties of this process that the launcher sets."""
    return {
        "argv": sys.argv,
        "main": __name__,
        "program": "python" if __spec__ is None else __spec__.name,
        "cwd": os.getcwd(),
        "leads its group": os.getpgrp() == os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "unbuffered": getattr(sys.stdout, "write_through", None),
        "process": type(multiprocessing.current_process()).__name__,
        "ignored": [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
        "env": dict(os.environ),
    }


def say(text: str) -> None:
    """Print a line in one write, so that no other rank's line comes between text and newline."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        stream.write(f"{text} of rank {rank}, attempt {attempt}, on {name}\n")
        stream.flush()


def meet() -> None:
    """Wait until all ranks are here: rank 0 receives every other one, then releases it."""
    size = int(os.environ["WORLD_SIZE"])
    if rank:
        (folder / f"here-{rank}").open("w").close()
        (folder / f"go-{rank}").open().close()
        return
    for other in range(1, size):
        (folder / f"here-{other}").open().close()
    for other in range(1, size):
        (folder / f"go-{other}").open("w").close()


def fail(times: int) -> None:
    """Let rank 1 fail in its first `times` attempts, when all ranks have come so far."""
    meet()
    if rank == 1 and attempt < times:
        raise ValueError(f"attempt {attempt} fails")
    if attempt < times:
        signal.pause()


def await_signal(name: str, reaction: str) -> None:
    """Let rank 0 signal torchrun when all ranks are ready."""
    number = signal.Signals[name]

    def react(found: int, frame: object) -> None:
        say(f"{signal.Signals(found).name}")
        if reaction == "exit":
            os._exit(0)

    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)  # pause() would sleep through a signal that came just before it
    signal.signal(number, react)
    meet()
    if rank == 0:
        os.kill(os.getppid(), number)
    while True:
        os.read(woken, 1)


def grow() -> None:
    """Let the second node start while this one is alone, and wait for the restart that it causes."""
    if os.environ["GROUP_WORLD_SIZE"] == "1":
        (folder / "alone").open("w").close()
        signal.pause()


def time_out() -> None:
    """Make torchrun's watchdog end this process at once."""
    request = {"version": 1, "pid": os.getpid(), "scope_id": "scope", "expiration_time": 1.0, "signal": 15}
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as watchdog:
        watchdog.write(json.dumps(request) + "\n")
    signal.pause()


def sleep_in_the_kernel() -> None:
    """Sleep uninterruptibly, as the parent of a vfork does until its child ends or executes a program."""
    if ctypes.CDLL(None).vfork() == 0:
        while True:
            signal.pause()


with (folder / f"seen-{rank}-{attempt}-of-{os.environ['WORLD_SIZE']}").open("x") as file:
    json.dump(see(), file)
say("first line")
match action:
    case "end":
        pass
    case "meet":
        meet()
    case "fail":
        fail(int(words[0]))
    case "exit":
        meet()
        if rank == 0:
            signal.pause()
        os._exit(int(words[0]))
    case "signal":
        await_signal(words[0], words[1])
    case "killed":
        meet()
        if rank == 0:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    case "vfork":
        sleep_in_the_kernel()
    case "grow":
        grow()
    case "time out":
        time_out()
    case _:
        raise ValueError(action)
say("last line")
