"""Named moments within a script's steps that are the last ones of a rank: `SCENE_KILLS`, as the programs of scenes ask.

Rules:

1. SCENE_KILLS is "rank:step:number:moment;…". Whichever process of the rank is the first that reaches that moment for
   the n-th time in that step is struck, and no later one: a file `killed-…` says that it was.
2. What strikes is a kill by the kernel, or what the program does at a mark before the moment's name, one of `!~^%`.
"""

import os
import signal
from collections import Counter

from tests.scripts import diary

_MARKS = "!~^%"
_KILLS = [kill.split(":", 3) for kill in os.environ.get("SCENE_KILLS", "").split(";") if kill]
_reached: "Counter[tuple[int, str]]" = Counter()


def struck(step: int, moment: str) -> str | None:
    """This rank has reached a moment of the step: the mark of what strikes it, "" for none; None: nothing does."""
    _reached[step, moment] += 1
    here = [str(diary.RANK), str(step), str(_reached[step, moment])]
    for *where, deadly in _KILLS:
        done = diary.FOLDER / f"killed-{':'.join(where)}:{deadly}"
        if where == here and deadly.lstrip(_MARKS) == moment and not done.exists():
            done.touch()
            return deadly.removesuffix(moment)
    return None


def end() -> None:
    """The kernel kills this process."""
    os.kill(os.getpid(), signal.SIGKILL)
