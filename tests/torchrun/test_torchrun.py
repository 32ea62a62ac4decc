"""Real torchrun, real ranks, a real template; only the manager is replaced by a script (`scripted.py`)."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.launch import Launcher
from tests.thorough import everyday

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TASKD_PROCESS_ENABLE": "on", "OMP_NUM_THREADS": "1"}


class Run:
    """The parts of one job in a directory of its own."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher = launcher
        self.folder = folder
        for name in ("up", "back", "begun", "up-0", "up-1", "ready"):
            os.mkfifo(folder / name)

    def command(self, mode: str, *options: str, program: tuple[str, ...] = ()) -> list[str | Path]:
        script = program or (str(PROGRAMS / "ranks.py"), str(self.folder), mode)
        fake = (PROGRAMS / "torchrun_with_fake.py", str(self.folder), mode)
        return ["python", *fake, "--nproc_per_node=2", "--log_dir", str(self.folder / "logs"), *options, *script]

    def run(self, mode: str, *options: str, program: tuple[str, ...] = ()) -> tuple[int, str]:
        return self.launcher.run(self.command(mode, *options, program=program), env=ENVIRONMENT)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    @property
    def lives(self) -> dict[tuple[str, str], list[str]]:
        """Surroundings of each incarnation of each rank: pid, parent, group, torch imported already, error file."""
        lines = [line.split() for line in (self.folder / "lives").read_text().splitlines()]
        return {(line[0], line[1]): line[2:] for line in lines}

    def log(self, rank: int, name: str, attempt: int = 0) -> str:
        return next((self.folder / "logs").glob(f"*/attempt_{attempt}/{rank}/{name}")).read_text()


@pytest.fixture
def job(launcher: Launcher, run_dir: Path) -> Run:
    return Run(launcher, run_dir)


def test_a_standby_takes_a_killed_rank(job: Run) -> None:
    status, output = job.run("warm", "--tee=3")
    assert status == 0, output
    lives = job.lives
    assert set(lives) == {("0", "0"), ("1", "0"), ("1", "1")}, "rank 0 lives once, rank 1 twice"
    first, second = lives["1", "0"], lives["1", "1"]
    assert (first[3], second[3]) == ("False", "True"), "only the standby has torch before the script imports it"
    assert second[0] == second[2], "it leads a process group"
    assert second[1] == first[1], "it is torchrun's child"
    assert "status -9" in job.calls
    assert job.calls[-2:] == ["stopping", "stop"]
    # the logs of the dead one stay, and the tee goes on
    assert "incarnation 0" in job.log(1, "stdout.log")
    assert "incarnation 0" in job.log(1, "stderr.log")
    assert "incarnation 1" in job.log(1, "stdout.log", attempt=1)
    assert "incarnation 1" in job.log(1, "stderr.log", attempt=1)
    for incarnation in ("0", "1"):
        assert f"[default1]:rank 1 incarnation {incarnation} as __main__" in output
    assert output.count("[default1]:rank 1 incarnation 1 ends") == 1
    errors = {life[-1] for (rank, _), life in job.lives.items() if rank == "1"}
    assert {"/".join(Path(error).parts[-3:-1]) for error in errors} == {"attempt_0/1", "attempt_1/1"}


def test_a_command_that_is_not_python_starts_cold(job: Run) -> None:
    program = ("--no-python", sys.executable, "-I", str(PROGRAMS / "ranks.py"), str(job.folder), "cold")
    status, output = job.run("cold", "--redirects=3", program=program)
    assert status == 0, output
    assert job.lives["1", "1"][3] == "False"
    assert "ends" in job.log(1, "stdout.log", attempt=1)
    assert any(call.startswith("command False") for call in job.calls)
    assert output.count("dead ranks are replaced by cold starts only") == 1


def test_a_living_process_is_fenced_before_another_takes_its_rank(job: Run) -> None:
    status, output = job.run("fence")
    assert status == 0, output
    assert "the old one has ended" in job.calls
    assert job.lives["1", "1"][0] != job.lives["1", "0"][0]


def test_a_module_is_run_as_one(job: Run) -> None:
    status, output = job.run("warm", program=("-m", "tests.torchrun.programs.ranks", str(job.folder), "warm"))
    assert status == 0, output
    assert output.count("as __main__") == 6


def test_give_up_ends_the_job_with_torchruns_report(job: Run) -> None:
    status, output = job.run("give up", "--max_restarts=5")
    assert status == 1
    assert "the job ends here: the script of this test says so" in output
    report = output[output.index("Root Cause") :]
    assert "rank      : 1 (local_rank: 1)" in report
    assert "Signal 9 (SIGKILL)" in report
    assert output.index("the job ends here") > output.rindex("====="), "torchrun's own report comes first, and whole"
    assert ("0", "1") not in job.lives, "nothing was restarted"


def test_stock_mode_restarts_the_whole_group(job: Run) -> None:
    status, output = job.run("stock", "--max_restarts=1")
    assert status == 0, output
    assert set(job.lives) == {("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")}
    assert job.calls.count("started (0, 1)") == 2
    assert job.calls.count("stopping") == 2
    assert job.calls.count("stop") == 1


def test_an_exception_fails_the_job_in_stock_mode(job: Run) -> None:
    status, output = job.run("stock only", program=(str(PROGRAMS / "ranks.py"), str(job.folder), "fail"))
    assert status == 1
    assert "exitcode  : 1" in output
    trace = output[output.index("Traceback") : output.index("ValueError: rank 1 fails")]
    files = re.findall(r'File "([^"]+)"', trace)  # the other rank's output may be between the lines
    assert files, trace
    assert not any(file.startswith(str(ROOT / "taskd")) for file in files), "the traceback shows no frame of ours"


@pytest.mark.parametrize(
    "number", everyday([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], signal.SIGTERM, signal.SIGKILL)
)
def test_nothing_outlives_torchrun(job: Run, number: signal.Signals) -> None:
    process = job.launcher.start(job.command("hold"), env=ENVIRONMENT)
    for name in ("up-0", "up-1", "ready"):
        (job.folder / name).open().close()
    process.send_signal(number)
    assert process.wait(30) != 0
    if number == signal.SIGKILL:
        for life in job.lives.values():  # the black box's parent watch does this in real life
            os.kill(int(life[0]), signal.SIGKILL)
    # the fixture `leak_mark` fails the test if the template, a standby or a rank is left
