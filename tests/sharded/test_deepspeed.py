"""DeepSpeed's ZeRO under taskd: bit for bit as under stock torchrun. A kill has all start anew, with a warning."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "deepspeed_zero.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None or shutil.which("ninja") is None or shutil.which("g++") is None,
        reason="deepspeed, and the ninja and g++ that it compiles its extension with, are not installed: "
        "python -m pip install deepspeed ninja, in an environment of its own",
    ),
]


def run(launcher: Launcher, folder: Path, *arguments: str, taskd: bool) -> tuple[list[str], str]:
    """Return each rank's result, and the output."""
    folder.mkdir()
    start = ["taskd", "run"] if taskd else ["torch.distributed.run"]
    stage, *ways = arguments
    command = ["python", "-m", *start, "--standalone", "--nproc-per-node=2", "--max-restarts=3", str(PROGRAM), stage]
    environment = {
        "TASKD_RUN_DIR": str(folder),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    status, told = launcher.run([*command, str(folder), *ways], env=environment, cwd=folder, timeout_s=280)
    assert status == 0, told
    return [(folder / f"rank-{rank}").read_text() for rank in range(2)], told


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_a_stage(launcher: Launcher, run_dir: Path, stage: str) -> None:
    expected, _ = run(launcher, run_dir / "stock", stage, taskd=False)
    calm, _ = run(launcher, run_dir / "calm", stage, taskd=True)
    assert calm == expected
    killed, told = run(launcher, run_dir / "killed", stage, "kill", "sdk", taskd=True)
    assert killed == expected
    assert "trains with a DeepSpeedEngine" in told.partition("was killed by SIGKILL")[0]
    assert "all processes start anew" in told
