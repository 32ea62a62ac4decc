"""The comparison of torch's own tests, with a checkout of our own making."""

import json
import shutil
from pathlib import Path

from tests.launch import Launcher
from tests.torchrun.torch_tests import FILES

TESTS = Path(__file__).with_name("programs") / "differs.py"
COMMAND = ("python", "-m", "tests.torchrun.torch_tests")


def test_differences_are_told(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / FILES[1]
    file.parent.mkdir(parents=True)
    shutil.copy(TESTS, file)
    status, output = launcher.run([*COMMAND, tmp_path])
    name = f"{FILES[1]}::Ends::test_differing"
    assert f"{name}: passed without taskd, failed with it" in output
    assert json.loads(output.splitlines()[-1]) == {
        "stock": {"passed": 2, "failed": 1, "skipped": 1},
        "taskd": {"passed": 1, "failed": 2, "skipped": 1},
        "differ": [name],
    }
    assert status == 1


def test_without_a_checkout_it_says_how_to_get_one(launcher: Launcher, tmp_path: Path) -> None:
    status, output = launcher.run([*COMMAND, tmp_path])
    assert status == 2
    assert "git clone" in output
