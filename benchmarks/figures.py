"""The figures that pages state: each stands once, in `figures.json`, with the command that measures it.

Rules:

1. A page has `<!-- figure:NAME -->0.080 s<!-- /figure -->` on one line. `scripts/make-docs.py` writes what is between
   the marks, and with `--check` fails where it differs.
2. `python -m benchmarks.record COMMAND` measures anew. Nobody edits a value by hand.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "benchmarks" / "figures.json"
_BEGIN, _END = "<!-- figure:", "<!-- /figure -->"
_MARKED: Final = re.compile(rf"({_BEGIN}([\w-]+) -->)(.*?)({_END})")
_OWN_DIGITS: Final = 3
"""What has so many, and a sign or unit beside them, no page has by chance."""
Value = int | float | list[int | float]


class FigureError(Exception):
    """A page or a command names what `figures.json` does not have, or a result lacks what it needs."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure. `key` leads to it in the last line of its command, `/` between levels. Of a list its bounds count."""

    name: str
    key: str
    value: Value
    unit: str
    digits: int

    @property
    def text(self) -> str:
        """As the pages have it."""
        values = self.value if isinstance(self.value, list) else [self.value]
        bounds = dict.fromkeys(self._number(value) for value in (min(values), max(values)))
        return " to ".join(bounds) + (f" {self.unit}" if self.unit else "")

    @property
    def is_telling(self) -> bool:
        """Whether nothing else can be meant by its text."""
        return len(re.sub(r"\D", "", self.text)) >= _OWN_DIGITS and not re.fullmatch(r"[\d.]*", self.text)

    def _number(self, value: float) -> str:
        return f"{value * (100 if self.unit == '%' else 1):,.{self.digits}f}"


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command, when and where it was run, and the figures of its last line that pages state."""

    command: str
    date: str
    machine: str
    figures: list[Figure]

    def of(self, result: object, date: str, machine: str) -> "Run":
        """The same figures of another result. Raises `FigureError`."""
        figures = [msgspec.structs.replace(one, value=_value(result, one)) for one in self.figures]
        return Run(self.command, date, machine, figures)


def _value(result: object, figure: Figure) -> Value:
    found = result
    for step in figure.key.split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    numbers = found if isinstance(found, list) and found else [found]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        raise FigureError(f"{figure.name}: found {found!r} at {figure.key!r} of the result, expected a number")
    return found  # type: ignore[return-value]  # it has just been looked at


def read_runs(path: Path = FILE) -> list[Run]:
    """What is recorded. Raises `FigureError` for a name that stands there twice."""
    runs = msgspec.json.decode(path.read_bytes(), type=list[Run])
    names = [figure.name for run in runs for figure in run.figures]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FigureError(f"{path.name}: found {', '.join(sorted(twice))} more than once, expected one of each")
    return runs


def write_runs(runs: Iterable[Run], path: Path = FILE) -> None:
    """Record these, one line for each figure."""
    path.write_text("[\n" + ",\n".join(_lines(run) for run in runs) + "\n]\n", encoding="utf-8")


def _lines(run: Run) -> str:
    head = [f'    "{name}": {_json(getattr(run, name))},' for name in ("command", "date", "machine")]
    figures = ",\n".join(f"      {_json(msgspec.to_builtins(figure))}" for figure in run.figures)
    return "\n".join(["  {", *head, '    "figures": [', figures, "    ]", "  }"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def by_name(runs: Iterable[Run]) -> dict[str, Figure]:
    """All figures."""
    return {figure.name: figure for run in runs for figure in run.figures}


def pages() -> list[Path]:
    """All that may state figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


def named(text: str) -> list[str]:
    """The figures that a page states."""
    return [found[2] for found in _MARKED.finditer(text)]


def rendered(text: str, figures: dict[str, Figure]) -> str:
    """A page with its figures as they are recorded. Raises `FigureError` for unknown ones and broken marks."""
    unknown = [name for name in named(text) if name not in figures]
    if unknown:
        raise FigureError(f"found the figure {', '.join(unknown)}, expected one of {FILE.name}")
    whole = len(named(text))
    if {text.count(_BEGIN), text.count(_END)} != {whole}:
        raise FigureError(f"found {whole} whole figures, and more marks; {_BEGIN}NAME --> and {_END} go on one line")
    return _MARKED.sub(lambda found: f"{found[1]}{figures[found[2]].text}{found[4]}", text)


def unmarked(text: str, figures: dict[str, Figure]) -> Iterator[str]:
    """Figures that a page states without their marks."""
    rest = _MARKED.sub("", text)
    for figure in figures.values():
        if figure.is_telling and re.search(rf"(?<![\w.,]){re.escape(figure.text)}(?!\w)", rest):
            yield f"{figure.name}: {figure.text}"
