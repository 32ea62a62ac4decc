"""Measured figures of the documentation pages: each is stored once, in `figures.json`, with its command.

Rules:

1. A page has `<!-- figure:NAME -->0.080 s<!-- /figure -->` on one line. `scripts/make-docs.py` writes the text between
   the marks. With `--check` it fails where the text differs.
2. `scripts/figures.sh --record` and `python -m benchmarks.record COMMAND` measure anew. No value is edited by hand.
3. A bar is edited by hand, and only to make it stricter.
"""

import enum
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
"""Fewest digits of a text that, with a sign or unit, is on no page by chance."""
Value = int | float | list[int | float]


class FigureError(Exception):
    """Error in figures: an unknown or repeated name, broken marks, a failed command, or a result without a value."""


class Better(enum.Enum):
    """Direction in which a figure improves."""

    LOWER = "lower"
    HIGHER = "higher"


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One figure of a command's last line.

    `key` is its path in that line, with `/` between levels. A list is an interval, of which the bounds count. `bar` is
    the worst acceptable value. `samples` is the path of the single measurements behind the value. Their range is the
    figure's `spread`, recorded with the value. A `full_only` figure is not in the output of the quick command. A
    `paced` figure is a time or a processor's share, which grows on a slower machine.
    """

    name: str
    key: str
    value: Value
    unit: str
    digits: int
    better: Better | None = None
    bar: float | None = None
    samples: str = ""
    spread: float | None = None
    full_only: bool = False
    paced: bool = False

    @property
    def text(self) -> str:
        """Value and unit as the pages show them."""
        return self.shown(self.value)

    def shown(self, value: Value) -> str:
        """Return a value of this figure as the pages show it."""
        bounds = dict.fromkeys(self._number(bound) for bound in (min(ends(value)), max(ends(value))))
        return " to ".join(bounds) + (f" {self.unit}" if self.unit else "")

    @property
    def is_telling(self) -> bool:
        """True if its text is too specific to be on a page by chance."""
        return len(re.sub(r"\D", "", self.text)) >= _OWN_DIGITS and not re.fullmatch(r"[\d.]*", self.text)

    def measured(self, result: object) -> "Figure":
        """Return this figure with the value and the spread of another result. Raise `FigureError` if it lacks them."""
        value = _value(result, self.name, self.key)
        samples = ends(_value(result, self.name, self.samples)) if self.samples else []
        spread = max(samples) - min(samples) if len(samples) > 1 else None
        return msgspec.structs.replace(self, value=value, spread=spread)

    def _number(self, value: float) -> str:
        return f"{value * (100 if self.unit == '%' else 1):,.{self.digits}f}"


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command with the figures of its last line, and the date, machine and commit of its run.

    `quick` is the same command with fewer pairs. A command with a `quick` one is a headline.
    """

    command: str
    quick: str
    date: str
    machine: str
    commit: str
    figures: list[Figure]

    def measured(self, result: object, date: str, machine: str, commit: str) -> "Run":
        """Return this run with the figures of another result. Raise `FigureError` if it lacks one."""
        figures = [figure.measured(result) for figure in self.figures]
        return msgspec.structs.replace(self, date=date, machine=machine, commit=commit, figures=figures)


def ends(value: Value) -> list[int | float]:
    """Return the numbers of a value, one or several."""
    return value if isinstance(value, list) else [value]


def _value(result: object, name: str, key: str) -> Value:
    found = result
    for step in key.split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    numbers = found if isinstance(found, list) and found else [found]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        raise FigureError(f"{name}: found {found!r} at {key!r} of the result, expected a number")
    return found  # type: ignore[return-value]  # checked above


def read_runs(path: Path = FILE) -> list[Run]:
    """Return all recorded runs. Raise `FigureError` if two figures have one name."""
    runs = msgspec.json.decode(path.read_bytes(), type=list[Run])
    names = [figure.name for run in runs for figure in run.figures]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FigureError(f"{path.name}: found {', '.join(sorted(twice))} more than once, expected one of each")
    return runs


def write_runs(runs: Iterable[Run], path: Path = FILE) -> None:
    """Write these runs into the file, one line for each figure."""
    path.write_text("[\n" + ",\n".join(_lines(run) for run in runs) + "\n]\n", encoding="utf-8")


def _lines(run: Run) -> str:
    head = [f'    "{name}": {_json(getattr(run, name))},' for name in ("command", "quick", "date", "machine", "commit")]
    figures = ",\n".join(f"      {_json(msgspec.to_builtins(figure))}" for figure in run.figures)
    return "\n".join(["  {", *head, '    "figures": [', figures, "    ]", "  }"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def by_name(runs: Iterable[Run]) -> dict[str, Figure]:
    """Return all figures by their names."""
    return {figure.name: figure for run in runs for figure in run.figures}


def pages() -> list[Path]:
    """Return all pages that may state figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


def named(text: str) -> list[str]:
    """Return the names of the figures that a page states."""
    return [found[2] for found in _MARKED.finditer(text)]


def rendered(text: str, figures: dict[str, Figure]) -> str:
    """Return a page with its figures as recorded. Raise `FigureError` for unknown figures and broken marks."""
    unknown = [name for name in named(text) if name not in figures]
    if unknown:
        raise FigureError(f"found the figure {', '.join(unknown)}, expected one of {FILE.name}")
    whole = len(named(text))
    if {text.count(_BEGIN), text.count(_END)} != {whole}:
        raise FigureError(f"found {whole} whole figures, and more marks; {_BEGIN}NAME --> and {_END} go on one line")
    return _MARKED.sub(lambda found: f"{found[1]}{figures[found[2]].text}{found[4]}", text)


def unmarked(text: str, figures: dict[str, Figure]) -> Iterator[str]:
    """Yield each figure that a page states without its marks."""
    rest = _MARKED.sub("", text)
    for figure in figures.values():
        if figure.is_telling and re.search(rf"(?<![\w.,]){re.escape(figure.text)}(?!\w)", rest):
            yield f"{figure.name}: {figure.text}"
