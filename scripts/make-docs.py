"""Writes docs/configuration.md from the table of settings, the diagrams in ARCHITECTURE.md from the core's tables, and
the figures of all pages, with the table of benchmarks/README.md, from benchmarks/figures.json.

With --check it writes nothing and fails if a page is not up to date.

Run it with the project's own Python: .venv/bin/python scripts/make-docs.py [--check]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "docs" / "configuration.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- diagrams: written by scripts/make-docs.py -->\n", "<!-- end of diagrams -->\n"
BEGIN_BARS, END_BARS = "<!-- bars: written by scripts/make-docs.py -->\n", "<!-- end of bars -->\n"
sys.path.insert(0, str(ROOT))

from benchmarks.figures import Better, Figure, FigureError, Run, by_name, pages, read_runs, rendered  # noqa: E402
from taskd.config.schema import Reader, Setting  # noqa: E402
from taskd.config.settings import SETTINGS  # noqa: E402
from taskd.core.diagrams import MACHINES, mermaid  # noqa: E402

HEAD = """# Configuration

<!-- Written by scripts/make-docs.py from taskd/config/settings.py. Change it there. -->

Settings are environment variables. The manager's can also be keys of the dict that is given to `init_taskd_manager`,
and the commonest of them are options of `taskd manager`. A key or an option wins over its variable, and a variable that
is empty counts as unset. Some can also be annotations of the pod, which count when nothing else gives them. Unknown
keys are refused; unknown variables that begin with `TASKD_` leave one warning. Times are in seconds, switches are `on`
or `off`.
"""
WORKER_NOTE = "\nNothing here is for users to set.\n"


def architecture() -> str:
    """Return ARCHITECTURE.md with its diagrams drawn anew."""
    drawn = "".join(f"\n**{machine.name}**\n\n```mermaid\n{mermaid(machine)}```\n" for machine in MACHINES)
    return _replaced(ARCHITECTURE, BEGIN, f"{drawn}\n", END)


def benchmarks(runs: list[Run]) -> str:
    """Return benchmarks/README.md with the table of headline figures."""
    lines = [_line(["figure", "bar", "stated", "measured", "at", "by"]), _line(["---"] * 6)]
    for run in (run for run in runs if run.quick):
        for figure in run.figures:
            stated = f"<!-- figure:{figure.name} -->{figure.text}<!-- /figure -->"
            lines.append(_line([figure.name, _bar(figure), stated, run.date, run.commit or "-", _code(run.command)]))
    return _replaced(BENCHMARKS, BEGIN_BARS, "".join(lines), END_BARS)


def _bar(figure: Figure) -> str:
    if figure.bar is None:
        return "-"
    number = f"{figure.bar * (100 if figure.unit == '%' else 1):g}"  # no figure is shown so: none is taken for a bar
    return f"{'≤' if figure.better is Better.LOWER else '≥'} {number} {figure.unit}".rstrip()


def _replaced(path: Path, begin: str, part: str, end: str) -> str:
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    if end not in rest:
        raise SystemExit(
            f"{path.name} lacks the lines {begin.strip()!r} and {end.strip()!r}, between which it is written"
        )
    return f"{before}{begin}{part}{end}{after}"


def configuration() -> str:
    """The page of all settings."""
    return HEAD + "".join("".join(_section(reader)) for reader in Reader)


def written() -> dict[Path, str]:
    """What each page of which a part is written has to be."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages()}
    runs = read_runs()
    texts |= {CONFIGURATION: configuration(), ARCHITECTURE: architecture(), BENCHMARKS: benchmarks(runs)}
    figures = by_name(runs)
    return {path: _with_figures(path, text, figures) for path, text in texts.items()}


def _with_figures(path: Path, text: str, figures: dict[str, Figure]) -> str:
    try:
        return rendered(text, figures)
    except FigureError as error:
        raise SystemExit(f"{path.relative_to(ROOT)}: {error}") from None


def _section(reader: Reader) -> Iterator[str]:
    yield f"\n## {reader.value}\n"
    if reader is Reader.WORKER:
        yield WORKER_NOTE
    columns = ["variable", *(["key"] if reader is Reader.MANAGER else []), "value", "default", "meaning"]
    yield "\n" + _line(columns) + _line(["---"] * len(columns))
    yield from (_line(_cells(setting, reader)) for setting in SETTINGS if reader in setting.readers)


def _cells(setting: Setting, reader: Reader) -> list[str]:
    key = [_code(setting.key)] if reader is Reader.MANAGER else []
    return [_code(setting.variable), *key, setting.expected, _code(setting.default), setting.meaning]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else "-"


def main() -> int:
    """Write or check the pages; the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    check = parser.parse_args().check
    stale = 0
    for path, text in written().items():
        name = path.relative_to(ROOT)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{name} is not what code and figures say; run: python scripts/make-docs.py")
            stale = 1
            continue
        path.write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
