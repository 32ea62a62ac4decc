"""Only the agent has the job's secret: no rank has it in its environment, where trackers and logs would find it."""

from pathlib import Path

from tests.launch import Launcher
from tests.torchrun.test_torchrun import ENVIRONMENT, PROGRAMS

SECRET = "0123456789abcdef" * 4


def test_ranks_do_not_inherit_the_secret(launcher: Launcher, run_dir: Path) -> None:
    command = ["python", "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    env = {**ENVIRONMENT, "TASKD_SECRET": SECRET, "TASKD_RUN_DIR": str(run_dir)}
    status, output = launcher.run([*command, PROGRAMS / "confides.py", run_dir], env=env)
    assert status == 0, output
    for name in ("first", "second"):
        shown = (run_dir / name).read_bytes()
        assert b"TASKD_GENERATION" in shown
        assert SECRET.encode() not in shown
