"""The self-check's verdict on the examples: the healthy ones are exact, and no line of them is named."""

import re
from pathlib import Path

import pytest

from tests.e2e.job import ROOT, no_outer_job
from tests.launch import Launcher
from tests.thorough import everyday

EXAMPLES = ROOT / "examples"
PROVEN = "self-check: exact: proven at step 3"
EXACT: dict[str, tuple[str, ...]] = {
    **{
        f"scripts/{name}.py": ()
        for name in (
            *("plain_loop", "amp_accumulation", "checkpoints", "ema_scheduler"),
            *("epochs_with_evaluation", "text_stateful", "mistake_behind"),
        )
    },
    "digits_ddp.py": ("--epochs", "1"),
    "chargpt_ddp.py": ("--steps", "10"),
    "chargpt_mesh.py": ("--mesh", "dp_shard=2", "--steps", "10"),
}
"""Exact examples. `mistake_behind` changes weights after the commit: only a fault leaves that out, and is reported."""
NAMED = {
    "counter": "progress.seen is changed by the training",
    "ema": "ema.shadow['0.weight'] (and 3 more of it) is changed by the training",
    "generator": "dice is changed by the training",
    "loader": "done again, it differs in the random numbers of torch: at a fault all processes start anew",
    "scheduler": "at a fault all processes start anew",
}


def said(launcher: Launcher, folder: Path, script: str, *arguments: str) -> str:
    """Return the output of an undisturbed job of two ranks."""
    env = {**no_outer_job(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TASKD_RUN_DIR": str(folder)}
    command = ["python", "-m", "taskd", "run", "--standalone", "--nproc-per-node=2", str(EXAMPLES / script), *arguments]
    status, output = launcher.run(command, env=env, cwd=folder, timeout_s=250)
    assert status == 0, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("script", everyday(EXACT, "scripts/epochs_with_evaluation.py"))
def test_a_healthy_script_is_exact(launcher: Launcher, run_dir: Path, script: str) -> None:
    output = said(launcher, run_dir, script, *EXACT[script])
    assert PROVEN in output
    assert not re.search(r"start anew|not exact|keeps it with the state", output), output


@pytest.mark.slow
@pytest.mark.parametrize("mistake", everyday(NAMED, "ema"))
def test_a_mistake_is_named(launcher: Launcher, run_dir: Path, mistake: str) -> None:
    output = said(launcher, run_dir, f"scripts/mistake_{mistake}.py")
    lines = [line for line in output.splitlines() if NAMED[mistake] in line]
    assert lines, output
    assert f"mistake_{mistake}.py:" in lines[0]
    assert (PROVEN in output) is (mistake == "counter"), output
