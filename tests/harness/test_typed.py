"""Scenes of several nodes set only variables that the pages show."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.figures import ROOT
from taskd.config.schema import Reader
from taskd.config.settings import SETTINGS
from tests import typed
from tests.harness.pages import EXAMPLES, FENCE, PAGES

ROOMS = ("ladder", "multinode", "checks", "clusters", "nodecheck", "faults")
NAME = re.compile(r"(TASKD|GLOO|NCCL|HCCL|MASTER|PET|TORCH|TORCHELASTIC)_[A-Z][A-Z_0-9]*")
TORCHRUNS_OWN = re.compile(r"PET_[A-Z_]+|TORCHELASTIC_ERROR_FILE")
"""Variables of torchrun, which stay as they are (docs/torchrun.md)."""
FILES = sorted(
    [*(ROOT / "tests").glob("nodes*.py"), *(path for room in ROOMS for path in (ROOT / "tests" / room).glob("*.py"))]
)


def shown() -> set[str]:
    """Return the variables in the pages' blocks of commands and in the start scripts, which name a cluster's own."""
    blocks = [block for page in PAGES for block in FENCE.findall(page.read_text())]
    scripts = [path.read_text() for path in EXAMPLES if path.suffix == ".sh"]
    return {found[0] for text in (*blocks, *scripts) for found in NAME.finditer(text)}


def documented() -> set[str]:
    """Return the settings of docs/configuration.md without those that only the agent passes to a rank."""
    found = (setting.variable for setting in SETTINGS if set(setting.readers) != {Reader.WORKER})
    page = (ROOT / "docs" / "configuration.md").read_text()
    return {name for name in found if name is not None and f"| `{name}` |" in page}


def typed_alone() -> set[str]:
    """Return the variables that the lines for a node set. No scene has them from elsewhere."""
    lines = [
        typed.static(["x"], node_rank=0, nnodes=2, procs_per_node=1, master_addr="a")[2],
        typed.dynamic(["x"], nnodes="2", procs_per_node=1, manager_host="a", store_host="b")[2],
    ]
    return {found[0] for line in lines for found in re.finditer(r"\bTASKD_[A-Z_]+(?==)", str(line))}


def variables(text: str) -> Iterator[str]:
    """Yield variables to which a program gives a value, by a dict or by a subscript."""
    given: list[tuple[ast.expr | None, ast.expr]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            given += zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Assign):
            given += ((target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript))
    for key, value in given:
        taken_away = isinstance(value, ast.Constant) and value.value is None
        if isinstance(key, ast.Constant) and NAME.fullmatch(str(key.value)) and not taken_away:
            yield str(key.value)


def wrong(text: str) -> list[str]:
    """Return the variables that a program sets and no page shows for that use."""
    known = shown() | documented()
    return [
        name
        for name in variables(text)
        if name in typed_alone() or not (name in known or TORCHRUNS_OWN.fullmatch(name))
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_scene_sets_what_the_pages_show(path: Path) -> None:
    assert wrong(path.read_text()) == []


def test_a_variable_that_is_not_shown_is_found() -> None:
    assert typed_alone() == {"TASKD_PROCESS_ENABLE", "TASKD_MANAGER"}
    assert wrong('env = {"TASKD_MANAGER": "a:1", "TASKD_STANDBY": "0", "TASKD_PROCESS_ENABLE": None}') == [
        "TASKD_MANAGER"
    ]
    assert wrong('env["TASKD_GENERATION"] = "1"; env["PET_NNODES"] = "2"') == ["TASKD_GENERATION"]


@pytest.mark.parametrize("room", ["ladder", "multinode", "faults"])
def test_a_scene_types_the_lines_of_the_pages(room: str) -> None:
    text = (ROOT / "tests" / room / "job.py").read_text()
    assert "typed.static(" in text
    assert "--node_rank=" not in text
    assert "--master_addr=" not in text
