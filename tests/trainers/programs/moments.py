"""Moments of a training with a library, at which it is killed.

Rules:

1. SCENE_KILLS names them: "rank:step:number:moment;…". Whichever process of the rank reaches that moment for the n-th
   time in that step first, with all former processes of the rank, is killed by the kernel, and no later one.
2. A program says in which step it is (`at`), and that it has reached a moment (`moment`). It does so in both runs, with
   taskd and without.
3. PLAIN tells a program that it is the undisturbed run of the plain library: it imports nothing of taskd then.
"""

import os
import signal
from collections import Counter

from tests.scripts import diary

PLAIN = os.environ.get("TRAINER_PLAIN") == "1"
_KILLS = [kill.split(":", 3) for kill in os.environ.get("SCENE_KILLS", "").split(";") if kill]
_step = [0]
_reached: "Counter[tuple[int, str]]" = Counter()


def at(step: int) -> None:
    """The training is in this step now, counted from 1."""
    if step != _step[0]:
        _step[0] = step
        _reached.clear()


def moment(name: str) -> None:
    """This rank has come so far in its present step; it may be its end."""
    diary.moment(f"{name} {_step[0]}")
    _reached[_step[0], name] += 1
    for rank, step, number, deadly in _KILLS:
        here = (diary.RANK, _step[0], _reached[_step[0], name], name) == (int(rank), int(step), int(number), deadly)
        done = diary.FOLDER / f"killed-{rank}:{step}:{number}:{deadly}"
        if here and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def into_backward(_gradient: object) -> None:
    """A tensor's hook."""
    moment("backward")


def logged(step: int, text: str) -> None:
    """What a logger was given: one line in a file that outlives this process."""
    with (diary.FOLDER / f"logged-{diary.RANK}").open("a") as file:
        file.write(f"{step} {text}\n")
