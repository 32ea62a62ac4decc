"""Error texts without the parts that vary, by which the same error is recognized again.

Rules:

1. The place where an error was raised (`file:line in function`) stays: errors at two lines are two errors. Temporary
   names in the place do not count.
2. In the message, no number counts, however it is written. No word with a digit counts either: process ids, ports,
   times, shapes, generations, request ids. A list of numbers is treated as one number.
3. Names that `tempfile` and `mktemp` make do not count. The first name in a folder of temporary files does not either.
"""

import re
from typing import Final

_PLACE: Final = re.compile(r"^.+?:\d+ in [^\s:]+: ")
_LONG: Final = re.compile(r"0x[0-9a-fA-F]+|\d{4,}")
_TEMPORARY: Final = re.compile(
    r"((?<![\w.])(?:/var)?/tmp|/dev/shm|/run/user)/[^/\s'\":,)]+"
    r"|(?<![^\W_])tmp[a-z0-9_]{8}(?![^\W_])|(?<!\w)tmp\.\w{6,}"
)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_NUMBER: Final = re.compile(r"\w*\d(?:[\w.]*\w)?(?:(?<=[eE])[+-]?\d+)?|(?<!\w)(?:nan|inf|NaN|Infinity)(?!\w)")
_RUN: Final = re.compile(r"[+-]?#(?:[\s.,:;/x×+-]*#)*")


def without_what_varies(error: str) -> str:
    """Return the error with a `#` in place of each part that does not count."""
    place = _PLACE.match(error)
    end = place.end() if place is not None else 0
    message = _UUID.sub("#", _without_temporary(error[end:]))
    return _without_temporary(error[:end]) + _RUN.sub("#", _NUMBER.sub("#", message))


def without_long_numbers(error: str) -> str:
    """Return the error with a `#` in place of each address and each number of four digits or more."""
    return _LONG.sub("#", error)


def _without_temporary(text: str) -> str:
    return _TEMPORARY.sub(lambda found: f"{found[1]}/#" if found[1] else "#", text)
