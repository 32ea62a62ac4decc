"""Pages of tables and text for a person, on a terminal or in a pipe.

Rules:

1. The contents come from files that anybody may have written. So control sequences of a terminal are shown as text,
   nothing is parsed as markup, and no paragraph has more than 4,096 characters.
2. On a terminal a page has the terminal's width. In a pipe no line is wrapped or cut, there is no colour, and each row
   is one line, for grep.
3. An empty column is not shown.
4. Only modules below `taskd.cli` import Rich, and only when a page is made.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from taskd.wire import text as safe

ALARM: Final = "bold red"
VICTIM: Final = "yellow"
QUIET: Final = "dim"
HEAD: Final = "bold"
GOOD: Final = "green"

_UNBOUNDED: Final = 100_000
_INDENT: Final = 2
_DAY_S: Final = 86_400

Cell = str | Text
Row = tuple[Sequence[Cell], str]
"""The cells of one row, and its style."""


def page(sink: TextIO, parts: Iterable[RenderableType]) -> None:
    """Write the parts, one below the other."""
    console = Console(file=sink, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if console.is_terminal:
        console.print(Group(*parts))
        return
    console = Console(
        file=sink, width=_UNBOUNDED, highlight=False, markup=False, emoji=False, no_color=True, color_system=None
    )
    with console.capture() as captured:
        console.print(Group(*parts))
    sink.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def line(text: object, style: str = "") -> Text:
    """Return a paragraph. Line breaks in the text cannot start another line."""
    return Text(safe.line(str(text)), style, overflow="fold")


def lines(text: object, style: str = "") -> Text:
    """Return a text that may have several lines."""
    return Text(safe.page(str(text)), style, overflow="fold")


def heading(text: object, style: str = HEAD) -> RenderableType:
    """Return a paragraph with an empty line above."""
    return Padding(line(text, style), (1, 0, 0, 0), expand=False)


def block(lines: Iterable[object], style: str = "") -> RenderableType:
    """Return indented lines, one below the other."""
    return Padding(Group(*(line(one, style) for one in lines)), (0, 0, 0, _INDENT), expand=False)


def pairs(rows: Iterable[tuple[str, Cell]]) -> RenderableType:
    """Return a list of names and their values. A row with an empty value is left out."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            table.add_row(name, value if isinstance(value, Text) else line(value))
    return Padding(table, (0, 0, 0, _INDENT), expand=False)


class Listing:
    """A table that fits the width of its page.

    A column whose name begins with `>` is aligned to the right. If the table is too wide, the columns of `spare` are
    left out one by one, the first one first. Then the columns of `wide` are wrapped.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Row], *, spare: Sequence[str] = (), wide: Sequence[str] = ()
    ) -> None:
        self._rows = rows
        self._wide = wide
        self._spare = spare
        self._shown = {
            name: index for index, name in enumerate(columns) if any(str(cells[index]) for cells, _ in self._rows)
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for Rich, without the spare columns for which there is no room."""
        shown, unbounded = dict(self._shown), options.update(width=_UNBOUNDED)
        for name in self._spare:
            if Measurement.get(console, unbounded, self._table(shown)).maximum + _INDENT <= options.max_width:
                break
            shown.pop(name, None)
        yield Padding(self._table(shown), (0, 0, 0, _INDENT), expand=False)

    def _table(self, shown: Mapping[str, int]) -> Table:
        table = Table(box=SIMPLE_HEAD, header_style=QUIET, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for name in shown:
            side: JustifyMethod = "right" if name.startswith(">") else "left"
            table.add_column(name.removeprefix(">"), justify=side, no_wrap=name not in self._wide, overflow="fold")
        for cells, style in self._rows:
            chosen = (cells[index] for index in shown.values())
            table.add_row(*(cell if isinstance(cell, Text) else line(cell) for cell in chosen), style=style)
        return table


def ago(age_s: float | None, of: str = "now") -> str:
    """Return an age as a phrase: `3.1 s ago`, `3.1 s before its end`; "" if it is not known."""
    if age_s is None:
        return ""
    return f"{span(age_s)} ago" if of == "now" else f"{span(age_s)} before {of}"


def span(seconds: float | None) -> str:
    """Return a duration for people; "" if it is not known."""
    if seconds is None:
        return ""
    if seconds < 1e-6:
        return "0 s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 120:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def wall(unix_s: float | None) -> str:
    """Return the local time, with the date if it is not today; "" if the time is unknown or impossible."""
    if unix_s is None:
        return ""
    try:
        then, now = time.localtime(unix_s), time.localtime()
    except (OverflowError, ValueError, OSError):
        return ""
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def since(unix_s: float | None) -> str:
    """Return the local time, and how long ago that was."""
    age_s = time.time() - unix_s if unix_s is not None else None
    told = wall(unix_s)
    return f"{told} ({span(age_s)} ago)" if told and age_s is not None and age_s >= 0 else told


def output() -> TextIO:
    """Return standard output. A character that its encoding lacks becomes a question mark."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return sys.stdout
