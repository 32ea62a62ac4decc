"""All names in a page exist: variables, files, links, and commands, which accept the options beside them."""

import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.figures import ROOT
from taskd.config import settings
from taskd.config.schema import Reader
from tests.faults import scenarios as faults
from tests.harness.pages import EXAMPLES, OPTION, PAGES, Named, code, commands, files, headings, links, variables
from tests.ladder import scenarios as ladder

MODULE = re.compile(r"-m ((?:tests|benchmarks|taskd)\.[\w.]+)|\b(scripts/[\w-]+\.py)")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@functools.cache
def known_variables() -> set[str]:
    """Return the variables of the settings, and all others that our programs name. Comments do not count."""
    ours = {setting.variable for setting in settings.SETTINGS if setting.variable is not None}
    used = re.compile(r"(?:\"|\$\{?)(TASKD_[A-Z_0-9]+)\b")
    read = re.compile(r"environ\.get\(\"(TASKD_\w+)\"")  # tests also have wrong names
    patterns = {"taskd": used, "csrc": used, "scripts": used, "tests": read}
    found = (
        pattern.findall(path.read_text())
        for folder, pattern in patterns.items()
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".sh", ".c")
    )
    return ours.union(*found)


def wrong_variables(text: str) -> Iterator[str]:
    for name in variables(text):
        if name.endswith("_"):
            if not any(known.startswith(name) for known in known_variables()):
                yield f"{name}*"
        elif name not in known_variables():
            yield name


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_variables(page: Path) -> None:
    assert list(wrong_variables(page.read_text())) == []


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for reader in Reader:
        (part,) = re.findall(rf"^## {re.escape(reader.value)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        for setting in settings.SETTINGS:
            if reader in setting.readers:
                assert f"| `{setting.variable}` |" in part
                assert reader is not Reader.MANAGER or setting.key is None or f"| `{setting.key}` |" in part


def wrong_files(text: str, page: Path) -> Iterator[str]:
    """Yield files that do not exist. A module may be named without its suffix."""
    for name in files(text):
        places = (ROOT / name, ROOT / f"{name}.py", page.parent / name)
        if not any(place.exists() for place in places):
            yield name


@every_page
def test_files(page: Path) -> None:
    assert list(wrong_files(page.read_text(), page)) == []


def wrong_links(text: str, page: Path) -> Iterator[str]:
    for target in links(text):
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in headings(text if path == page else path.read_text())):
            yield target


@every_page
def test_links(page: Path) -> None:
    assert list(wrong_links(page.read_text(), page)) == []


@functools.cache
def help_of(*words: str) -> frozenset[str]:
    """Return the options in the list of a program's help. Their descriptions may name others."""
    command = [sys.executable, *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, (words, done.stderr)
    listed = re.findall(r"^ {2,4}(-.*?)(?: {2}|$)", done.stdout, re.MULTILINE)
    return frozenset(OPTION.findall(" ".join(listed)))


def of_script(script: Path) -> frozenset[str]:
    """Return the options that a script reads itself, and those of the programs that it starts."""
    text = script.read_text()
    if script.suffix == ".py":
        return help_of(str(script))
    started = [["-m", module] if module else [path] for module, path in MODULE.findall(text)]
    return frozenset(OPTION.findall(text)).union(*(help_of(*words) for words in started))


def is_there(named: Named) -> bool:
    match named.kind:
        case "module":
            return importlib.util.find_spec(named.name) is not None
        case "script":
            return (ROOT / named.name).is_file()
        case "word":
            return re.search(rf"^ *(usage: )?taskd {named.name}\b", cli_usage(), re.MULTILINE) is not None
        case _:
            return True


@functools.cache
def cli_usage() -> str:
    command = [sys.executable, "-m", "taskd", "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=True).stdout


def taken(named: Named) -> frozenset[str]:
    """Return the options that the command accepts."""
    match named.kind:
        case "module":
            return help_of("-m", named.name)
        case "script":
            return of_script(ROOT / named.name)
        case "word" if "--rehearse" in named.options:
            return help_of("-m", "taskd", "run") | help_of("-m", "taskd", "run", "--rehearse")
        case "word":
            scenario = (named.scenario,) if named.name == "chaos" and named.scenario else ()
            return help_of("-m", "taskd", named.name, *scenario)
        case _:
            return help_of("-m", "taskd", "run")


def wrong_commands(text: str) -> Iterator[str]:
    """Yield missing programs, and options that they do not accept."""
    for named in commands(text):
        if not is_there(named):
            yield f"{named.name} in: {named.text}"
        elif named.options:
            yield from (f"{option} in: {named.text}" for option in named.options if option not in taken(named))


@every_page
def test_commands(page: Path) -> None:
    assert list(wrong_commands(page.read_text())) == []


SCENARIOS = {
    "ladder": [scenario.name for scenario in ladder.SCENARIOS],
    "faults": [scenario.name for scenario in faults.SCENARIOS],
}


def wrong_scenarios(text: str) -> Iterator[str]:
    """Yield arguments of `--only` that choose nothing."""
    for line in code(text):
        for tool, part in re.findall(r"scripts/(ladder|faults)\.sh .*?--only (\"[^\"]+\"|\S+)", line):
            if not any(part.strip('"') in name for name in SCENARIOS[tool]):
                yield part


@every_page
def test_scenarios(page: Path) -> None:
    assert list(wrong_scenarios(page.read_text())) == []


@pytest.mark.parametrize(
    ("page", "words", "count"),
    [
        ("docs/strategies/README.md", "scenarios on 3 or 4 nodes", len(SCENARIOS["ladder"])),
        ("README.md", "kinds of fault", len(SCENARIOS["faults"])),
    ],
)
def test_how_many_there_are(page: str, words: str, count: int) -> None:
    assert re.findall(rf"(\d+) {words}", (ROOT / page).read_text()) == [str(count)]


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    """There is one that exists and one that does not, of each kind."""
    page = tmp_path / "page.md"
    text = "# One\n\n## Two: `three`, (four)\n"
    page.write_text(text)
    names = "`TASKD_STANDBY`, `TASKD_HANG_*`, `TASKD_NODE_RANK`, `TASKD_SO_PATH`, `TASKD_STANBY`, `TASKD_FANG_*`"
    assert set(wrong_variables(names)) == {"TASKD_STANBY", "TASKD_FANG_*"}
    assert list(wrong_files("docs/chaos.md, `taskd/core/`, taskd/errors, tests/gone.py", page)) == ["tests/gone.py"]
    led = "[a](page.md) [b](#two-three-four) [c](page.md#one) [d](https://x.org) [e](gone.md) [f](page.md#three)"
    assert set(wrong_links(text + led, page)) == {"gone.md", "page.md#three"}
    assert list(wrong_scenarios('`bash scripts/ladder.sh --only drain`, `bash scripts/faults.sh --only "gone"`')) == [
        '"gone"'
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("taskd drain 1 --manager node0:9601 --timeout 3  # --fast", []),
        ("taskd drain 1 --manger node0:9601", ["--manger"]),
        ("taskd fly --high", ["fly"]),
        ("$ taskd chaos kill 1 --every 3 --ms 4", ["--ms"]),
        ("TASKD_STANDBY=0 taskd run --nnodes 2 train.py --fast", []),
        ("torchrun --nproc_per_node=2 --node-check train.py --fast", []),
        ("torchrun --nproc-per-nod=2 train.py", ["--nproc-per-nod"]),
        ("sudo bash scripts/ladder.sh --json --only drain --onyl x", ["--onyl"]),
        ("bash scripts/test.sh --thorough", []),
        ("bash scripts/gone.sh", ["scripts/gone.sh"]),
        (".venv/bin/python scripts/make-docs.py --check --cheque", ["--cheque"]),
        ("python -m benchmarks.recovery --pairs 5 --peers 3", ["--peers"]),
        ("python -m benchmarks.gone", ["benchmarks.gone"]),
    ],
)
def test_a_command_that_is_not_there_is_found(line: str, wrong: list[str]) -> None:
    for text in (f"Try `{line}`.", f"```bash\n{line}\n```"):
        assert [found.partition(" in: ")[0] for found in wrong_commands(text)] == wrong
