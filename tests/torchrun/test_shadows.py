"""Modules of the user's, beside the script and its directory, with the names of taskd's imports."""

import shutil
import sys
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.isolation import ImportIsolation
from tests.launch import Launcher
from tests.thorough import everyday
from tests.torchrun.test_script import ENVIRONMENT

pytestmark = [pytest.mark.slow]

PROGRAM = Path(__file__).with_name("programs") / "shadowed.py"
STANDARD = ("platform", "random", "tempfile", "textwrap", "uuid", "ipaddress", "queue", "typing", "logging", "signal")
TORCHRUN = ("python", "-c", "import sys; sys.path.pop(0); from torch.distributed.run import main; main()")
"""Equivalent of the command `torchrun`: the working directory is not on its path."""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Return a folder of the user's."""
    folder = tmp_path / "users"
    folder.mkdir()
    return folder


def shadow(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text("USERS = True\n")


def both(launcher: Launcher, folder: Path, run_dir: Path, *command: str) -> list[tuple[int, str]]:
    """Return the results of stock torchrun, and of torchrun with taskd, which must have taken part."""
    ours = {**ENVIRONMENT, "TASKD_STANDBY": "0", "TASKD_RUN_DIR": str(run_dir)}
    seen = [launcher.run(command, cwd=folder, env={**ours, "TASKD_PROCESS_ENABLE": one}) for one in ("off", "on")]
    assert '"processes"' in (run_dir / "default" / "journal.jsonl").read_text()
    return seen


def test_the_script_finds_its_own_modules_and_taskd_the_true_ones(
    launcher: Launcher, users: Path, run_dir: Path
) -> None:
    names = (*STANDARD, "taskd", "msgspec")
    shadow(users, *names)
    shutil.copy(PROGRAM, users / "train.py")
    stock, taskd = both(launcher, users, run_dir, *TORCHRUN, "train.py", *names)
    assert stock == (0, f"{dict.fromkeys(names, True)}\n"), stock
    assert taskd == stock


@pytest.mark.thorough
@pytest.mark.parametrize("flags", everyday([(), ("-P",)], ()))
def test_modules_where_torchrun_starts(launcher: Launcher, users: Path, run_dir: Path, flags: tuple[str, ...]) -> None:
    shadow(users, "ipaddress")
    shutil.copy(PROGRAM, users / "train.py")
    command = ("python", *flags, "-m", "torch.distributed.run", "train.py", "torch", "ipaddress", "random")
    stock, taskd = both(launcher, users, run_dir, *command)
    assert stock == (0, "sum 1.0\n{'ipaddress': True, 'random': None}\n"), stock
    assert taskd == stock


def test_a_folder_called_taskd(launcher: Launcher, users: Path, run_dir: Path) -> None:
    (users / "taskd").mkdir()
    (users / "taskd" / "__init__.py").write_text("USERS = True\n")
    shutil.copy(PROGRAM, users / "train.py")
    stock, taskd = both(launcher, users, run_dir, *TORCHRUN, "-m", "train", "torch", "taskd")
    assert stock == (0, "sum 1.0\n{'taskd': True}\n"), stock
    assert taskd == stock


def test_an_isolation_inside_another_leaves_the_users_path() -> None:
    """A warm process has torch already, so modules that need torch are imported within the first."""
    before = list(sys.path)
    isolation = ImportIsolation(set(sys.modules), ["/ours"])
    with isolation:
        with isolation:
            assert sys.path == ["/ours", *before]
        assert sys.path == ["/ours", *before]
    assert sys.path == before
