"""The patch in a process of its own: inert when off, installed once when on, and never an error."""

import subprocess
import sys
from pathlib import Path

import pytest

from taskd.config.process import environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
WATCHED = "[name for name in sys.modules if name.split('.')[0] in ('torch', 'zmq', 'msgspec')]"
ENTRY_POINT = "from importlib.metadata import EntryPoint; EntryPoint('taskd', 'taskd.python.adaptor.patch:handlers', 'torchrun.handlers').load()()"  # noqa: E501
LAUNCHER = "torch.distributed.launcher.api"


def python(code: str, *, enabled: bool = True) -> tuple[str, str]:
    """Return output and errors of a fresh interpreter, which must end well."""
    return program("-c", code, enabled=enabled)


def program(*words: str | Path, enabled: bool = True) -> tuple[str, str]:
    """Return output and errors of a program, which must end well."""
    env = {**environment(), "PYTHONPATH": str(ROOT), "TASKD_PROCESS_ENABLE": "on" if enabled else "off"}
    done = subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, check=False, timeout=150, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def agent_class(code: str) -> str:
    """Return code that prints the launcher's agent class after `code`."""
    return f"import sys\n{code}\nimport {LAUNCHER} as launcher\nprint(launcher.LocalElasticAgent.__name__)"


def test_off_it_loads_and_changes_nothing() -> None:
    load = "import sys\nbefore = sys.meta_path[:]\nimport taskd.python.adaptor.patch"
    assert python(f"{load}\nprint({WATCHED}, sys.meta_path == before)", enabled=False) == ("[] True", "")
    assert python(agent_class("import taskd.python.adaptor.patch"), enabled=False)[0] == "LocalElasticAgent"


def test_on_it_imports_no_torch_by_itself() -> None:
    assert python(f"import sys\nimport taskd.python.adaptor.patch\nprint({WATCHED})")[0] == "[]"


@pytest.mark.parametrize(
    "code",
    [
        "import taskd.python.adaptor.patch",
        ENTRY_POINT,
        f"import {LAUNCHER}\nimport taskd.python.adaptor.patch",
        f"import taskd.python.adaptor.patch\n{ENTRY_POINT}\nimport taskd.python.adaptor.patch",
        "from taskd.adaptors.torchrun.install import install\ninstall()\nimport taskd.python.adaptor.patch\ninstall()",
    ],
)
def test_every_way_installs_once(code: str) -> None:
    name, errors = python(
        agent_class(code) + "\nprint([base.__name__ for base in launcher.LocalElasticAgent.__mro__[:2]])"
    )
    assert name.splitlines() == ["TaskdElasticAgent", "['TaskdElasticAgent', 'LocalElasticAgent']"]
    assert errors == ""


def test_loaded_in_the_middle_of_the_launchers_import() -> None:
    """torch loads a plugin so when a program imports the launcher itself."""
    assert program(PROGRAMS / "loads_midway.py")[0] == "TaskdElasticAgent"


def test_an_unknown_torch_is_left_as_it_was_with_one_warning() -> None:
    change = (
        "import torch.distributed.elastic.multiprocessing.api as api\n"
        "api.get_subprocess_handler = lambda entrypoint, args: None\n"
        "import taskd.python.adaptor.patch"
    )
    name, errors = python(agent_class(change))
    assert name == "LocalElasticAgent"
    assert errors.count("torchrun is left as it was") == 1
    assert "get_subprocess_handler takes (entrypoint, args), expected" in errors
    assert "Traceback" not in errors


def test_a_broken_taskd_is_a_traceback_in_the_log_and_no_more() -> None:
    name, errors = python(
        agent_class("sys.modules['taskd.adaptors.torchrun.agent'] = None\nimport taskd.python.adaptor.patch")
    )
    assert name == "LocalElasticAgent"
    assert "taskd could not be installed; torchrun is left as it was" in errors


def test_the_plugin_is_no_rendezvous() -> None:
    assert "expected one of torch's own" in program(PROGRAMS / "asks_rendezvous.py")[0]


def test_a_module_hook_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").write_text("value = 1\n")
    assert program(PROGRAMS / "hooked.py", tmp_path)[0] == "[1, 0, 2] True SourceFileLoader set()"


def test_who_only_asks_where_a_module_is_does_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").write_text("value = 1\n")
    assert program(PROGRAMS / "heralded.py", tmp_path)[0] == "[False, 0, 1] True SourceFileLoader set()"
