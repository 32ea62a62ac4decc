"""Which line of the user's script has led to a call into torch."""

import sys
import sysconfig
from pathlib import Path
from typing import Final

import torch

_BETWEEN: Final = (str(Path(torch.__file__).parent) + "/", str(Path(__file__).resolve().parents[2]) + "/", "<")
"""Torch, taskd, and what has no file: never what the user can change."""
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def script_line() -> str:
    """`file:line` of the innermost frame that is the user's; of a library if none is."""
    frame = sys._getframe(1)
    of_library = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_BETWEEN):
            place = f"{name}:{frame.f_lineno}"
            if not name.startswith(_LIBRARIES):
                return place
            of_library = of_library or place
        frame = frame.f_back  # type: ignore[assignment]  # None at the top
    return of_library or "an unknown line"
