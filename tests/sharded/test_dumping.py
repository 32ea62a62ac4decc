"""Sharded jobs that end with a dump, and the tensors that others load of it, compared as a whole and bit for bit.

Rules:

1. Ranks are killed so that each replica set has a rank left. If this is impossible, all ranks raise an error instead.
2. The job itself gathered the compared tensors, with torch alone, before it was killed.
3. A job that has loaded trains on.
"""

from pathlib import Path

import pytest
import torch

from tests.launch import Launcher
from tests.thorough import everyday

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "dumping.py"
RANKS = 4
CONVERT = ["python", "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]


class Jobs:
    """Jobs with one directory for checkpoints."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher = launcher
        self._folder = folder
        self._played = 0

    def play(self, shape: str, do: str, ranks: int = RANKS, killed: str = "") -> tuple[int, str]:
        """Play a job. Return exit status and output."""
        self._played += 1
        environment = {
            "DUMPING_SHAPE": shape,
            "DUMPING_DO": do,
            "DUMPING_KILLED": killed,
            "DUMPING_TENSORS": str(self.tensors(do)),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TASKD_CHECKPOINT_DIR": str(self._folder / "shelf"),
            "TASKD_PROCESS_ENABLE": "off" if do == "plain" else "on",
            "TASKD_RECOVER_STRATEGY": "dump",
            "TASKD_RUN_DIR": str(self._folder / f"{self._played}"),
        }
        (self._folder / f"{self._played}").mkdir()
        command = ["python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(PROGRAM)]
        return self._launcher.run(command, env=environment, timeout_s=120)

    def tensors(self, do: str) -> Path:
        return self._folder / f"{do}.pt"

    def dump(self, shape: str, killed: str = "") -> Path:
        """Let a job of that shape dump. Return the checkpoint."""
        status, told = self.play(shape, "train", killed=killed)
        assert status == 1, told
        assert "a checkpoint of step 4 was written" in told
        return self._folder / "shelf" / "step-4"

    def same(self, do: str, shape: str, ranks: int) -> None:
        """Load it into a job of that shape. Check that all tensors are there, and are the same."""
        status, told = self.play(shape, do, ranks)
        assert status == 0, told
        wanted, found = torch.load(self.tensors("train")), torch.load(self.tensors(do))
        assert found.keys() == wanted.keys()
        assert not [name for name, tensor in wanted.items() if not torch.equal(tensor, found[name])]


@pytest.fixture
def jobs(launcher: Launcher, run_dir: Path) -> Jobs:
    return Jobs(launcher, run_dir)


Case = tuple[str, str, str, int]
"""Shape that is dumped, ranks that are killed then, shape that loads, and its number of ranks."""
CASES: list[Case] = [
    ("hsdp", "0,3", "fsdp2", 4),
    ("hsdp", "3", "hsdp", 4),
    ("hsdp", "3", "tp", 4),
    ("fsdp2", "", "tp", 2),
    ("fsdp2", "", "none", 1),
    ("tp", "3", "none", 2),
    ("tp", "1,2", "tp", 4),
    ("fsdp2-tp", "", "hsdp", 4),
    ("pp", "3", "fsdp2", 3),
    ("pp", "0", "pp", 2),
    ("pp-alike", "3", "pp-alike", 4),
    ("none", "3", "pp", 2),
    ("zero-pairs", "0,3", "none", 2),
    ("zero-pairs", "1", "zero", 3),
    ("zero", "", "zero", 4),
    ("zero", "", "fsdp2", 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", everyday(CASES, CASES[12]), ids=str)
def test_what_a_job_dumps_another_loads(jobs: Jobs, case: Case) -> None:
    shape, killed, into, ranks = case
    jobs.dump(shape, killed)
    jobs.same("load", into, ranks)


PLAIN: list[Case] = [
    ("hsdp", "0,3", "fsdp2", 4),
    ("tp", "3", "none", 2),
    ("fsdp2", "", "tp", 2),
    ("pp", "3", "fsdp2", 3),
    ("zero-pairs", "0,3", "fsdp2", 4),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", everyday(PLAIN, PLAIN[0]), ids=str)
def test_torch_alone_loads_it(jobs: Jobs, launcher: Launcher, run_dir: Path, case: Case) -> None:
    shape, killed, into, ranks = case
    path = jobs.dump(shape, killed)
    jobs.same("plain", into, ranks)
    status, told = launcher.run([*CONVERT, path, run_dir / "one.pt"])
    assert status == 0, told
    wanted = torch.load(jobs.tensors("train"))
    found = torch.load(run_dir / "one.pt", weights_only=False)
    assert not [name for name, tensor in wanted.items() if not torch.equal(tensor, found[name])]


@pytest.mark.slow
@pytest.mark.thorough
def test_stages_that_call_theirs_alike_are_not_taken_for_one_another(jobs: Jobs) -> None:
    jobs.dump("pp-alike", "0")
    status, told = jobs.play("none", "load", 1)
    assert status == 1
    assert "several stages, which call different things by the same name (model.blocks.0.first.weight" in told


@pytest.mark.slow
def test_a_set_of_which_no_rank_is_left(jobs: Jobs, run_dir: Path) -> None:
    status, told = jobs.play("hsdp", "train", killed="1,3")
    assert status == 1
    assert "not dump: no rank of replica set 'dp_shard=1 " in told
    assert not list(run_dir.glob("shelf/*"))
