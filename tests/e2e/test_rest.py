"""An undisturbed job: how often torchrun wakes up, and how often a commit calls Python."""

import time
from pathlib import Path

from tests.e2e.job import Job
from tests.launch import Launcher

WINDOW_S = 3.0


def wakes(thread: Path) -> int:
    """Return how often a thread has slept so far."""
    fields = dict(line.split(":\t") for line in (thread / "status").read_text().splitlines() if ":\t" in line)
    return int(fields["voluntary_ctxt_switches"])


def test_torchruns_own_thread_rests(launcher: Launcher, run_dir: Path) -> None:
    """Its interval of 0.1 s would wake it 30 times."""
    job = Job(launcher, run_dir, 2)
    points = [{"name": f"run{rank}", "rank": rank, "at": ["run"]} for rank in range(2)]
    job.start("hold.py", {"points": points}, env={"TASKD_STANDBY": "0"})
    for rank in range(2):
        job.held(f"run{rank}")
    job.wait(lambda: len(job.pids) == 2, "the manager's view of the ranks")
    own = Path(f"/proc/{job.process.pid}/task/{job.process.pid}")
    time.sleep(1.5)  # work from before ends meanwhile
    before = wakes(own)
    time.sleep(WINDOW_S)
    assert wakes(own) - before <= 12
    for rank in range(2):
        job.release(f"run{rank}")
    assert job.end() == 0


def test_most_commits_are_done_by_the_core(launcher: Launcher, run_dir: Path) -> None:
    """Copies of the state are due every few steps; only the commits of these call Python."""
    job = Job(launcher, run_dir, 2)
    job.start("whole_commits.py")
    assert job.end() == 0
    assert int((run_dir / "whole").read_text()) < 50
