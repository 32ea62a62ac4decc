"""Commands where torch is not installed: one line with the cause, and no traceback."""

import sysconfig
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a folder with all packages of this environment but torch."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(("torch", "functorch")):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize(
    ("words", "name", "status"),
    [
        (("run", "train.py"), "run", 1),
        (("run", "--help"), "run", 1),
        (("run", "--rehearse", "train.py"), "run --rehearse", 2),
        (("check",), "check", 1),
        (("patch", "status"), "patch", 2),
    ],
)
def test_a_command_that_needs_torch(
    launcher: Launcher, packages: Path, words: tuple[str, ...], name: str, status: int
) -> None:
    env = {"PYTHONPATH": f"{packages}:{ROOT}"}
    found, output = launcher.run(["python", "-S", "-m", "taskd", *words], env=env)
    assert found == status, output
    assert output.startswith(f"taskd {name}: found no torch for ")
    assert len(output.splitlines()) == 1, output


def test_doctor_names_it_among_its_findings(launcher: Launcher, packages: Path) -> None:
    status, output = launcher.run(
        ["python", "-S", "-m", "taskd", "doctor"], env={"PYTHONPATH": f"{packages}:{ROOT}", "MASTER_ADDR": "node0"}
    )
    assert status == 1
    assert "Traceback" not in output
    assert "!!  fits torch     no torch for " in output
    assert "ok  kernel         Linux " in output
    assert "ok  C library      glibc " in output
    assert "ok  manager        MASTER_ADDR is set: for a job of one node 127.0.0.1:9601 if one answers there" in output
