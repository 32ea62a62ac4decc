"""Text from outside, made safe where it enters: exceptions, names of hosts, processes, threads and files.

Rules:

1. What comes out is one line of printable characters, or several; each fits the field of a message (`wire.bounds`).
2. Nothing is dropped in silence: what cannot be printed is shown as its escape, what is too long as "…".
3. Bytes of a file's name that are no text are shown as bytes.
"""

from typing import Final

from taskd.wire.bounds import LINE_CHARS, NAME_CHARS, PAGE_CHARS

_BREAKS: Final = frozenset("\n\r\t\v\f\x85\u2028\u2029")
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
"""By these Python stands for bytes that are no text."""


def line(text: str, most: int = LINE_CHARS) -> str:
    """One line, at most so many characters long."""
    if len(text) <= most and text.isprintable():
        return text
    whole = text[: most + 1]
    return shorten("".join(" " if char in _BREAKS else _shown(char) for char in whole), most)


def name(text: str) -> str:
    """One line as long as a name may be."""
    return line(text, NAME_CHARS)


def page(text: str, most: int = PAGE_CHARS) -> str:
    """Several lines, together at most so many characters long."""
    return shorten("\n".join(line(one, most) for one in text[: most + 1].split("\n")), most)


def shorten(text: str, most: int) -> str:
    """The beginning, if there is too much."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if _FIRST_BYTE <= code <= _LAST_BYTE else ascii(char)[1:-1]
