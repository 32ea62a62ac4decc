"""Moments of a training with a library, at which it is killed.

Rules:

1. SCENE_KILLS names them (see `tests.scripts.deadly`).
2. A program reports its step (`at`), and its arrival at a moment (`moment`). It does so in both runs, with taskd and
   without.
3. A mark before a moment's name strikes otherwise: `~` a kernel that does not end is sent to the device, `^` the Python
   code loops without end.
4. PLAIN marks the undisturbed run of the plain library, in which a program imports nothing of taskd.
"""

import os

import torch

from tests.scripts import deadly, diary

PLAIN = os.environ.get("TRAINER_PLAIN") == "1"
_ENDLESS_CYCLES = 10**15
_step = [0]


def at(step: int) -> None:
    """Record that the training is in this step now, counted from 1."""
    _step[0] = step


def moment(name: str) -> None:
    """Record a moment of the present step, at which this rank may be killed."""
    diary.moment(f"{name} {_step[0]}")
    struck = deadly.struck(_step[0], name)
    if struck == "~":
        torch.cuda._sleep(_ENDLESS_CYCLES)
    elif struck == "^":
        while True:
            pass
    elif struck is not None:
        deadly.end()


def into_backward(_gradient: object) -> None:
    """Record the moment as a tensor's hook."""
    moment("backward")


def logged(step: int, text: str) -> None:
    """Record a logger's line in a file that outlives this process."""
    with (diary.FOLDER / f"logged-{diary.RANK}").open("a") as file:
        file.write(f"{step} {text}\n")
