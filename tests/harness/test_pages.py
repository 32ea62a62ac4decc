"""Pages with promises name a test for each of them. Each named test exists, and each line has one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts.catalog import IDENTICAL, REFUSED, RESTARTED, SCRIPTS
from tests.scripts.grades import Grade

ROOT = Path(__file__).parents[2]
PROGRAMS = {script.name: script for script in SCRIPTS}
FOLDER = re.compile(r"test \(`(tests/[\w/]*)`\)")
PYTHON = re.compile(r"^([\w/]+\.py)(?:::(\w+))?$")
GRADES: dict[str, Grade] = {
    "Exact, in place": IDENTICAL,
    "Refused or reported, with file and line": REFUSED,
    "All start anew": RESTARTED,
}
CHECKED = "Recognized by the self-check alone"


def rows(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each line of each table with a column of tests: its folder, the line, and its cells."""
    folder = ""
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if not line.startswith("|"):
            folder = ""
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if found := FOLDER.fullmatch(cells[-1]):
            folder = found[1]
        elif folder and set(line) - set("|- "):
            yield folder, line, cells


def wrong(folder: str, cell: str) -> Iterator[str]:
    """Yield missing objects that a cell names: files, tests in them, words in the file named before, scripts."""
    text = ""
    for name in re.findall(r"`([^`]+)`", cell):
        found = PYTHON.match(name)
        if found is None:
            if name not in PROGRAMS and name not in text:
                yield f"{name} is no script of tests/scripts/programs, and does not stand in the file before it"
            continue
        file = next((path for path in (ROOT / folder / found[1], ROOT / found[1]) if path.is_file()), None)
        text = "" if file is None else file.read_text()
        if file is None:
            yield f"there is no {found[1]} in {folder}"
        elif found[2] and not re.search(rf"^(async )?def {found[2]}\(", text, re.MULTILINE):
            yield f"{found[1]} has no {found[2]}"


@pytest.mark.parametrize("page", ["exactness.md", "torchrun.md", "security.md"])
def test_each_line_names_a_test_that_exists(page: str) -> None:
    table = list(rows(page))
    assert len(table) > 10
    for folder, line, cells in table:
        assert re.search(r"`\w", cells[-1]), f"no test is named: {line}"
        assert not list(wrong(folder, cells[-1])), line


def test_a_name_that_is_not_there_is_found() -> None:
    held = "`test_pages.py::test_a_name_that_is_not_there_is_found` (`fsdp3`), script `fsdp2`"
    assert list(wrong("tests/harness/", held)) == []
    for name in ("`test_gone.py`", "`test_pages.py::test_gone`", "`gone`", "`test_pages.py` (`go" + "ne by`)"):
        assert len(list(wrong("tests/harness/", name))) == 1, name


def test_what_becomes_of_each_script_is_what_its_list_allows() -> None:
    """Every script is on the page, under a grade that it may have, or under those that the self-check finds."""
    named: set[str] = set()
    for heading, grade in [*GRADES.items(), (CHECKED, None)]:
        for name in listed(heading):
            assert bool(PROGRAMS[name].needs_check) is (grade is None), f"{name}: {heading}"
            assert grade is None or grade in PROGRAMS[name].allowed, f"{name}: {heading}"
            assert name not in named, f"{name} stands there twice"
            named.add(name)
    assert named == PROGRAMS.keys()


def listed(heading: str) -> list[str]:
    """Return the scripts in the first column of the table below a heading of the page."""
    text = (ROOT / "docs" / "exactness.md").read_text()
    (part,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*)\|", part, re.MULTILINE)))
