"""Writes docs/configuration.md from the table of settings; with --check only fails if the page is not up to date.

Run it with the project's own Python: .venv/bin/python scripts/make-docs.py [--check]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
sys.path.insert(0, str(ROOT))

from taskd.config.schema import Reader, Setting  # noqa: E402
from taskd.config.settings import SETTINGS  # noqa: E402

HEAD = """# Configuration

<!-- Written by scripts/make-docs.py from taskd/config/settings.py. Change it there. -->

Settings are environment variables. The manager's can also be keys of the dict that is given to `init_taskd_manager`;
a key wins over its variable, and a variable that is empty counts as unset. Unknown keys are refused; unknown variables
that begin with `TASKD_` leave one warning. Times are in seconds, switches are `on` or `off`.
"""
WORKER_NOTE = "\nNothing here is for users to set.\n"


def page() -> str:
    """The text of the page."""
    return HEAD + "".join("".join(_section(reader)) for reader in Reader)


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
    """Write or check the page; the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    check = parser.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{PAGE.relative_to(ROOT)} is not what taskd/config/settings.py says; run: python scripts/make-docs.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
