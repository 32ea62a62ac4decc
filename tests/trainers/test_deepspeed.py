"""The adapter of DeepSpeed with the library itself, in one process: the state of each stage, and steps broken off."""

from pathlib import Path

import pytest

from tests.e2e.job import ROOT, no_outer_job
from tests.launch import Launcher, free_port

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: scripts/trainers.sh installs it")
PROGRAM = Path(__file__).with_name("programs") / "deepspeed_alone.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_stage_alone(launcher: Launcher) -> None:
    environment = {
        **no_outer_job(),
        "DS_ACCELERATOR": "cpu",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    status, told = launcher.run(["python", str(PROGRAM)], env=environment, timeout_s=280)
    assert status == 0, told
    stages = [line for line in told.splitlines() if line.startswith("stage ")]
    assert len(stages) == 14, told
    assert "at a fault all processes start anew: its optimizer is a BF16_Optimizer" in told
    assert [line for line in stages if not line.endswith(": as undisturbed")] == []
