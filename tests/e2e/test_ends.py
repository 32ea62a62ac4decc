"""The end of a job: by a signal, by its agent's death, by its budget. Nothing is left, no other process is touched."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from taskd.runtime.agent.rankfiles import RankFiles
from tests.e2e.conftest import MakeJob
from tests.e2e.job import SCRIPTS, Job, await_none
from tests.e2e.plan import point
from tests.launch import Launcher
from tests.leaks import MARK
from tests.thorough import everyday


@pytest.fixture
def stranger(make_job: MakeJob, launcher: Launcher) -> Job:
    """Start a process without a job, with the same script in the same environment."""
    job = make_job(1)
    plan = {"folder": str(job.folder), "points": [point("stranger", 0, "run")]}
    env = {**job.environment(), MARK: "a stranger"}
    job.watch(launcher.start(["python", SCRIPTS / "hold.py", json.dumps(plan)], env=env))
    assert job.held("stranger") == job.process.pid
    return job


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    everyday([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], signal.SIGTERM, signal.SIGKILL),
    ids=lambda number: number.name,
)
def test_torchrun_is_told_to_end(make_job: MakeJob, stranger: Job, leak_mark: str, number: int) -> None:
    """Ranks, template and standbys end with it; its exit status is torchrun's own."""
    points = [point("zero", 0, "run"), point("one", 1, "run")]
    job = make_job(2).start("hold.py", {"points": points, "commits": True})
    job.held("zero")
    job.held("one")
    job.warm()
    job.process.send_signal(number)
    assert job.end() == (-number if number == signal.SIGKILL else 1)
    await_none(leak_mark, "these outlive torchrun")
    if number == signal.SIGKILL:
        RankFiles(job.run_dir, "job").close()  # it could not clean up: the next agent does
    assert stranger.process.poll() is None
    stranger.release("stranger")
    assert stranger.end() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop_comes_to_the_end_of_the_script(make_job: MakeJob, number: int) -> None:
    """Preemption sends such a signal. The ranks leave their training function together, save, and go on after it."""
    seconds = {}
    for switch in ("on", None):
        job = make_job(2)
        started_s = time.monotonic()
        job.start("stops.py", {"signals": [number]}, env={"TASKD_PROCESS_ENABLE": switch, "TASKD_STANDBY": "0"})
        assert job.end(limit_s=60) == 1, job.output
        seconds[switch] = time.monotonic() - started_s
        assert {path.name for path in job.folder.iterdir()} >= {"model.pt", "behind-0", "behind-1"}, job.output
        assert f"got signal: {number:d}" in job.output
        assert "no manager answers" not in job.output
    assert seconds["on"] < 2 * seconds[None] + 5, seconds  # one after the other, on a machine that may be busy


@pytest.mark.thorough
@pytest.mark.parametrize("status", everyday([0, 3], 0))
def test_a_rank_that_has_finished_does_not_abort(make_job: MakeJob, status: int) -> None:
    """torch alone aborts here nearly always: its thread needs the interpreter, which ends. The status stays."""
    job = make_job(2).start("abrupt.py", {"steps": 3, "status": status}, env={"TASKD_MAX_RESTARTS": "0"})
    assert job.end() == (1 if status else 0)
    assert "terminate called" not in job.output
    assert ("exitcode  : 3" in job.output) == bool(status)


@pytest.mark.parametrize("switch", ["on", None], ids=["taskd", "stock"])
def test_a_rank_that_fails_after_the_training_ends_the_job_while_another_goes_on(
    make_job: MakeJob, switch: str | None
) -> None:
    """No process waits for the rank that still computes, with or without taskd."""
    points = [point("zero", 0, "after"), point("one", 1, "after")]
    options = ("--standalone", "--max_restarts=0")
    env = {"TASKD_PROCESS_ENABLE": switch, "TASKD_STANDBY": "0"}
    job = make_job(2).start("after.py", {"points": points, "steps": 3}, options=options, env=env)
    job.held("zero")
    job.held("one")
    job.release("one")
    assert job.end(limit_s=30) == 1, "rank 0 waits for a word that never comes"
    assert "exitcode  : 3" in job.output
    assert "please report" not in job.output


def test_the_budget_is_spent(make_job: MakeJob) -> None:
    """The second fault ends the job, and torchrun's report names the rank that failed as the root cause."""
    points = [point("one", 1, "run"), point("again", 1, "run"), point("zero", 0, "run"), point("zero again", 0, "run")]
    env: dict[str, str | None] = {"TASKD_MAX_RESTARTS": "1", "TASKD_STANDBY": "0", "LOGLEVEL": "INFO"}
    job = make_job(2).start("hold.py", {"points": points}, env=env)
    job.held("zero")
    job.kill("one")
    assert job.recovered(1)["restart"]
    job.held("zero again")
    (killed,) = job.kill("again")
    assert job.end() == 1
    assert job.named("stopped")[-1]["reason"] == "all 1 restarts of the job are spent (--max_restarts)"
    assert job.output.count("all 1 restarts of the job are spent") == 1, "manager and agent are one here"
    report = job.output[job.output.index("Root Cause") :]
    assert f"(pid: {killed})  (SIGKILL)" in report
    assert "rank      : 1 (local_rank: 1)" in report


@pytest.mark.parametrize(
    "spelling", everyday(["--max_restarts=0", "--max-restarts=0", "PET_MAX_RESTARTS"], "PET_MAX_RESTARTS")
)
def test_no_restart_is_allowed(make_job: MakeJob, spelling: str) -> None:
    """0 counts on the command line, or as torchrun's variable. Arguments of the script do not count."""
    points = [point("one", 1, "run")]
    options, env = (("--standalone", spelling), {}) if "=" in spelling else (("--standalone",), {spelling: "0"})
    job = make_job(2).start("hold.py", {"points": points}, options=options, env={**env, "TASKD_STANDBY": "0"})
    job.kill("one")
    assert job.end() == 1
    assert "all 0 restarts of the job are spent" in job.output
    assert not job.named("recovered")


@pytest.mark.parametrize(("ranks", "starts"), [(1, 3), (2, 2), (3, 1)])
def test_a_script_with_a_bug_in_its_set_up_ends_soon(make_job: MakeJob, run_dir: Path, ranks: int, starts: int) -> None:
    """An error of all three ranks is not chance: none is started again."""
    script = run_dir / "typo.py"
    script.write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    logs = run_dir / "logs"  # a file for each rank: on one stream their tracebacks run into each other
    options = ("--standalone", "--redirects=2", f"--log-dir={logs}")
    job = make_job(ranks).start(str(script), {}, options=options, env={"TASKD_STANDBY": "0"})
    assert job.end() == 1
    assert f"{ranks * starts} processes failed before any step was committed" in job.output
    written = [file.read_text() for file in logs.rglob("stderr.log")]
    assert len([text for text in written if text.endswith("KeyError: 'NO_SUCH_VARIABLE'\n")]) >= ranks
    assert len(job.named("processes")) <= starts


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "ctypes.string_at(0)",
            r"signal 11 \(SIGSEGV\): an invalid memory access at address 0x0 in thread \S+; backtrace libc\S*\+0x\w+",
        ),
        ("os.abort()", r"signal 6 \(SIGABRT\): abort\(\) was called in thread \S+; backtrace libc\S*\+0x[0-9a-f]+ < "),
        ("os.kill(os.getpid(), 15)", r"signal 15 \(SIGTERM\), sent by itself"),
        ("1 / 0", r"exit code 1 at \S+/end.py:2 in <module>: ZeroDivisionError: division by zero"),
        ("os._exit(3)", r"exit code 3;"),
    ],
)
def test_the_end_of_the_job_tells_how_the_rank_has_ended(
    make_job: MakeJob, run_dir: Path, line: str, said: str
) -> None:
    script = run_dir / "end.py"
    script.write_text(f"import ctypes, os\n{line}\n")
    job = make_job(1).start(str(script), {}, env={"TASKD_RECOVER_STRATEGY": "exit", "TASKD_STANDBY": "0"})
    assert job.end() == 1
    assert re.search(rf"the job ends here: rank 0: {said}", job.output), job.output
