"""The checks that `scripts/lint.sh` runs beside the public tools."""

import ast
import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
reads = runpy.run_path(str(SCRIPTS / "check-environ.py"))["reads"]
check_kinds = runpy.run_path(str(SCRIPTS / "check-kinds.py"))
numbers = runpy.run_path(str(SCRIPTS / "package-numbers.py"))
check_names = runpy.run_path(str(SCRIPTS / "check-names.py"))["main"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import os\nx = os.environ['A']", "os.environ"),
        ("import os\nx = os.environ.get('A')", "os.environ"),
        ("import os\nf(os.environ)", "os.environ"),
        ("import os\nx = 'A' in os.environ", "os.environ"),
        ("import os\nx = os.getenv('A')", "os.getenv"),
        ("import os\nx = os.environb[b'A']", "os.environb"),
        ("import os\nx = os.environ.pop('A')", "os.environ"),
        ("import os\nx = os.environ.setdefault('A', 'b')", "os.environ"),
        ("\nfrom os import environ", "from os import environ"),
        ("\nfrom os import path, getenv as g", "from os import getenv"),
    ],
)
def test_a_read_of_the_environment_is_found(source: str, name: str) -> None:
    assert list(reads(ast.parse(source))) == [(2, name)]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A'] = 'b'",
        "import os\ndel os.environ['A']",
        "import os\nos.environ.update(A='b')",
        "import os\nos.environ.clear()",
        "import os\nos.getpid()",
        "environ = {}\nx = environ['A']",
    ],
)
def test_writing_and_other_names_pass(source: str) -> None:
    assert list(reads(ast.parse(source))) == []


def test_a_class_name_that_stands_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "one.py").write_text("class Event: ...\nclass Row: ...\n")
    (package / "inner" / "two.py").write_text("def f():\n    class Event: ...\n")
    assert check_names(package) == 1
    place = "package/inner/two.py:2, package/one.py:1"
    assert capsys.readouterr().out == f"class Event: {place}; give each a name that says more\n"
    (package / "one.py").unlink()
    assert check_names(package) == 0
    assert capsys.readouterr().out == ""


def test_a_mix_up_that_passes_is_told_and_so_is_an_error_elsewhere() -> None:
    source = "right()\nwrong()  # must fail\nother()  # must fail\nlast()\n"
    report = (
        "taskd/core/agent.py:2: error: not of that file\n"
        "scripts/mixups.py:3: note: no error\n"
        'scripts/mixups.py:2: error: "int"; expected "JobRank"  [arg-type]\n'
    )
    found = check_kinds["errors"](report)
    assert found == {2: '"int"; expected "JobRank"  [arg-type]'}
    assert list(check_kinds["complaints"](source, {**found, 4: "no such name"})) == [
        "scripts/mixups.py:3: mypy lets this mix-up pass: other()",
        "scripts/mixups.py:4: mypy refuses what is no mix-up: no such name",
    ]
    assert list(check_kinds["complaints"](source, {2: "", 3: ""})) == []


def test_a_file_without_mix_ups_is_refused() -> None:
    assert len(list(check_kinds["complaints"]("right()\n", {}))) == 1


def test_import_cycles_of_modules_and_rooms() -> None:
    graph = {
        "p": set(),
        "p.a": set(),
        "p.a.x": {"p.b.y"},
        "p.b": set(),
        "p.b.y": {"p.a.z"},
        "p.a.z": {"p.c"},
        "p.c": {"p"},
    }
    assert numbers["cycles"](graph) == []
    assert numbers["between_rooms"](graph, "p") == {"p.a": {"p.b", "p"}, "p.b": {"p.a"}, "p": set()}
    assert numbers["cycles"](numbers["between_rooms"](graph, "p")) == [["p.a", "p.b"]]
    assert numbers["cycles"]({**graph, "p": {"p.a.z"}}) == [["p", "p.a.z", "p.c"]]


def test_attributes_assignments_and_tests_of_a_phase() -> None:
    """An object's own attributes, assignments to others' attributes, and tests of a phase are counted."""
    tree = ast.parse(
        "class A:\n    x: int\n    def f(self, other):\n        self.y = other.z = 1\n        return other.z, self.w\n"
        "def g(job, phase):\n    return job.phase is P.A or isinstance(phase, B) or phase.name or job == phase.x\n"
    )
    nodes = list(ast.walk(tree))
    assert numbers["attributes_of"](tree.body[0]) == {"x", "y"}
    assert sum(map(numbers["is_foreign_assignment"], nodes)) == 1
    assert sum(map(numbers["is_phase_test"], nodes)) == 2


def test_words_are_counted_in_docstrings_comments_and_names() -> None:
    text = (
        '"""Whether it is told."""\nheard_s = 1  # of it\nX = "said"\n"""Text below a field."""\nsayings = retold = 2\n'
    )
    module = numbers["Module"]("m", text, ast.parse(text))
    assert list(numbers["docstrings"](module)) == ["Whether it is told.", "Text below a field."]
    assert list(numbers["comments"](module)) == ["of it"]
    assert [name for name in numbers["names_in"](module) if numbers["SPEECH"].search(name)] == ["heard_s"]
    assert [bool(numbers["OPENING"].match(text)) for text in ("Whether", "of it", "Offer", "(What)")] == [
        True,
        True,
        False,
        True,
    ]
