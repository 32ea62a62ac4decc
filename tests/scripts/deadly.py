"""Named moments within a script's steps at which a rank dies, as SCENE_KILLS lists them for the programs of scenes.

Rules:

1. SCENE_KILLS is "rank:step:number:moment;…". The first process of the rank that reaches that moment for the n-th time
   in that step is struck, and no later one: a file `killed-…` records that.
2. A process is killed by the kernel, or struck by the program if one of the marks `!~^%` precedes the moment's name.
"""

import os
import signal
from collections import Counter

from tests.scripts import diary

_MARKS = "!~^%"
_KILLS = [kill.split(":", 3) for kill in os.environ.get("SCENE_KILLS", "").split(";") if kill]
_reached: "Counter[tuple[int, str]]" = Counter()


def struck(step: int, moment: str) -> str | None:
    """Record a moment of this rank. Return the mark of its fault, "" without a mark, None without a fault."""
    _reached[step, moment] += 1
    here = [str(diary.RANK), str(step), str(_reached[step, moment])]
    for *where, deadly in _KILLS:
        done = diary.FOLDER / f"killed-{':'.join(where)}:{deadly}"
        if where == here and deadly.lstrip(_MARKS) == moment and not done.exists():
            done.touch()
            return deadly.removesuffix(moment)
    return None


def end() -> None:
    """Let the kernel kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
