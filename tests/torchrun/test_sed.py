"""The seed's sed line and `scripts/patch-torch.sh`, on copies of the installed run.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.launcher import SED_LINE, torchrun_file
from taskd.config.process import environment
from tests.thorough import everyday

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "patch-torch.sh"
LOADS = Path(__file__).with_name("programs") / "loads_copy.py"


@pytest.fixture
def original(tmp_path: Path) -> bytes:
    """Return the file as torch ships it."""
    return b"".join(line for line in torchrun_file().read_bytes().splitlines(True) if line.decode().strip() != SED_LINE)


@pytest.fixture
def copy(tmp_path: Path, original: bytes) -> Path:
    path = tmp_path / "run.py"
    path.write_bytes(original)
    path.chmod(0o640)
    return path


def sed(path: Path) -> None:
    subprocess.run(["sed", "-i", f"/import os/i {SED_LINE}", str(path)], check=True)


def patch(action: str, path: Path) -> tuple[int, str]:
    command = ["bash", str(SCRIPT), action, "--python", sys.executable, "--file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    return done.returncode, done.stdout + done.stderr


def run_copy(path: Path, *, enabled: bool) -> str:
    """Load the copy as torch.distributed.run, and return the launcher's agent class."""
    env = {**environment(), "PYTHONPATH": str(ROOT), "TASKD_PROCESS_ENABLE": "on" if enabled else ""}
    return subprocess.run(
        [sys.executable, LOADS, str(path)], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("times", everyday([1, 2], 2))
def test_the_seeds_line_works_however_often_it_is_run(copy: Path, times: int) -> None:
    for _ in range(times):
        sed(copy)
    assert copy.read_text().splitlines().count(SED_LINE) >= 1
    assert run_copy(copy, enabled=True) == "True TaskdElasticAgent"
    assert run_copy(copy, enabled=False) == "True LocalElasticAgent"


def test_the_script_applies_once_and_reverts_exactly(copy: Path, original: bytes) -> None:
    assert patch("status", copy)[0] == 1
    for _ in range(2):
        assert patch("apply", copy)[0] == 0
        assert copy.read_text().splitlines().count(SED_LINE) == 1
    assert patch("status", copy)[0] == 0
    assert copy.stat().st_mode & 0o777 == 0o640
    for _ in range(2):
        assert patch("revert", copy)[0] == 0
        assert copy.read_bytes() == original
    assert [path.name for path in copy.parent.iterdir()] == ["run.py"], "no temporary file is left"


def test_the_script_undoes_the_seeds_line(copy: Path, original: bytes) -> None:
    sed(copy)
    sed(copy)
    matching = sum(b"import os" in line for line in original.splitlines())  # in older torch one in a comment, too
    assert matching
    assert f"{2 * matching} line(s)" in patch("status", copy)[1]
    assert patch("revert", copy)[0] == 0
    assert copy.read_bytes() == original


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import sys\n", "found 0 lines 'import os'"),
        ("import os\nimport os\n", "found 2 lines 'import os'"),
        (f"if True:\n    {SED_LINE}\nimport os\n", "in another form"),
        ("import os\ndef f(:\n", "would not be right afterwards"),
    ],
)
def test_the_script_refuses_what_it_does_not_understand(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "run.py"
    path.write_text(text)
    status, output = patch("apply", path)
    assert status == 2
    assert found in output
    assert path.read_text() == text
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.py"]


@pytest.mark.parametrize("action", ["", "remove"])
def test_the_script_says_what_it_takes(copy: Path, action: str) -> None:
    status, output = patch(action, copy)
    assert status == 2
    assert output.startswith("taskd patch: argument action: invalid choice")
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_keep_their_ends(copy: Path, original: bytes, end: bytes) -> None:
    other = original.replace(b"\n", end)
    copy.write_bytes(other)
    assert patch("apply", copy)[0] == 0
    assert copy.read_bytes() == other.replace(
        end + b"import os" + end, end + SED_LINE.encode() + end + b"import os" + end
    )
    assert patch("status", copy)[0] == 0
    assert patch("revert", copy)[0] == 0
    assert copy.read_bytes() == other


@pytest.mark.root
def test_a_read_only_installation_is_one_line(tmp_path: Path, copy: Path, original: bytes) -> None:
    """It is a mount to which not even root can write."""
    mount = 'mount --bind -o ro "$1" "$1" && shift && exec "$@"'
    command = [sys.executable, "-m", "taskd", "patch", "apply", "--file", str(copy)]
    env = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), *command],
        env=env, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Read-only file system; run.py is left as it was" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert copy.read_bytes() == original


def test_a_copy_that_shares_its_inode_stays_as_it_is(tmp_path: Path, copy: Path, original: bytes) -> None:
    cached = tmp_path / "cached.py"
    cached.hardlink_to(copy)
    assert patch("apply", copy)[0] == 0
    assert cached.read_bytes() == original


def test_the_installation_of_another_python(tmp_path: Path) -> None:
    """Each Python has a torch of its own. One without torch is named."""
    for name, content in (("with", "import os\n"), ("without", None)):
        python = tmp_path / name
        folder = tmp_path / f"{name}-packages"
        folder.mkdir()
        if content is not None:
            (folder / "torch" / "distributed").mkdir(parents=True)
            (folder / "torch" / "__init__.py").touch()
            (folder / "torch" / "distributed" / "run.py").write_text(content)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
    command = ["bash", str(SCRIPT), "apply", "--python"]
    done = subprocess.run([*command, tmp_path / "with"], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "with-packages/torch/distributed/run.py").read_text() == f"{SED_LINE}\nimport os\n"
    done = subprocess.run([*command, tmp_path / "without"], capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"taskd patch: {tmp_path}/without has no torch, expected an installed one: give another --python\n"
    )
