"""The first actions of the Pythons that tests start (`tests/startup`)."""

import shutil
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).resolve().parents[2]
STARTUP = ROOT / "tests" / "startup"
PROGRAM = """
import gc, sys
import taskd_tests_startup
gc.disable() if sys.argv[1] == "off" else None
before = len(sys.meta_path)
frozen = gc.get_freeze_count()
import torch
made = torch.collecting
print(made, gc.isenabled(), gc.get_freeze_count() > frozen, before - len(sys.meta_path), sorted(vars(torch.__loader__)))
cycle = []
cycle.append(cycle)
del cycle
print(gc.collect())
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [("on", "False True True 1 ['name', 'path']\n1\n"), ("off", "False False False 1 ['name', 'path']\n1\n")],
)
def test_torch_is_imported_without_collections(launcher: Launcher, tmp_path: Path, given: str, expected: str) -> None:
    shutil.copy(STARTUP / "taskd_tests_startup.py", tmp_path)
    (tmp_path / "torch.py").write_text("import gc\ncollecting = gc.isenabled()\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    assert launcher.run(["python", "-S", tmp_path / "program.py", given]) == (0, expected)


def test_what_a_program_has_before_dynamo_is_imported_is_collected_as_ever(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copy(STARTUP / "taskd_tests_startup.py", tmp_path)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_dynamo.py").write_text(
        "import gc\ncollecting = gc.isenabled()\ncycle = []\ncycle.append(cycle)\n"
    )
    (tmp_path / "program.py").write_text(
        "import gc, sys, taskd_tests_startup, torch\n"
        "finders = len(sys.meta_path)\n"
        "own = []\n"
        "own.append(own)\n"
        "import torch._dynamo\n"
        "print(torch._dynamo.collecting, gc.isenabled(), gc.is_tracked(own), finders - len(sys.meta_path))\n"
        "gc.collect()\n"
        "del own, torch._dynamo.cycle\n"
        "print(gc.collect())\n"
    )
    assert launcher.run(["python", "-S", tmp_path / "program.py"]) == (0, "False True True 1\n1\n")


def test_an_import_that_fails_leaves_the_collector_on(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copy(STARTUP / "taskd_tests_startup.py", tmp_path)
    (tmp_path / "torch.py").write_text("raise RuntimeError\n")
    program = (
        "import gc, taskd_tests_startup\ntry:\n    import torch\nexcept RuntimeError:\n    print(gc.isenabled())\n"
    )
    (tmp_path / "program.py").write_text(program)
    assert launcher.run(["python", "-S", tmp_path / "program.py"]) == (0, "True\n")


def test_it_is_found_by_taskds_own_hook(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copy(STARTUP / "taskd_tests_startup.py", tmp_path)
    (tmp_path / "torch.py").write_text("import gc\ncollecting = gc.isenabled()\n")
    (tmp_path / "program.py").write_text(
        "import taskd_tests_startup\n"
        "from taskd.adaptors.torchrun.imports import after_import\n"
        "after_import('torch', lambda module: print(module.collecting))\n"
        "import torch\n"
        "print(sorted(vars(torch.__loader__)))\n"
    )
    status, output = launcher.run(["python", "-S", tmp_path / "program.py"], env={"PYTHONPATH": str(ROOT)})
    assert (status, output) == (0, "False\n['name', 'path']\n")
