"""Text from outside, made safe where it enters: exceptions, names of hosts, processes, threads and files.

Rules:

1. The result is one line of printable characters, or several lines. It fits the field of a message (`wire.bounds`).
2. Nothing is dropped in silence: an unprintable character becomes its escape, and "…" marks a cut.
3. Bytes of a file's name that are no text are shown as bytes.
"""

from typing import Final

from taskd.wire.bounds import LINE_CHARS, NAME_CHARS, PAGE_CHARS

_BREAKS: Final = frozenset("\n\r\t\v\f\x85\u2028\u2029")
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
"""Code points by which Python represents bytes that are no text."""


def line(text: str, most: int = LINE_CHARS) -> str:
    """Return the text as one line of at most `most` characters."""
    if len(text) <= most and text.isprintable():
        return text
    whole = text[: most + 1]
    return shorten("".join(" " if char in _BREAKS else _shown(char) for char in whole), most)


def name(text: str) -> str:
    """Return the text as one line of at most `NAME_CHARS` characters."""
    return line(text, NAME_CHARS)


def page(text: str, most: int = PAGE_CHARS) -> str:
    """Return the text with its line breaks, as at most `most` characters."""
    return shorten("\n".join(line(one, most) for one in text[: most + 1].split("\n")), most)


def shorten(text: str, most: int) -> str:
    """Return the text, cut to `most` characters if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if _FIRST_BYTE <= code <= _LAST_BYTE else ascii(char)[1:-1]
