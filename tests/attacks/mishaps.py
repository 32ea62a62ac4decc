"""Mistakes by the same user, and by the job's own code. There is no defence, but no harm beyond the job either."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import taskd
from tests.attacks.job import PROGRAM, RANKS, Attack, AttackedJob
from tests.attacks.outsiders import nothing
from tests.e2e.job import ROOT
from tests.shim.armed import CORE, GATE

_SAME, _OWN = "the same user", "the job's own code"
SWEPT = "directory of this node's black boxes, was removed by somebody else"
USUAL_MS = 5000
"""Longer than a recovery on a busy machine, and shorter than any wait for a missing object."""
_ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\0"
_SECOND = ("unshare", "--pid", "--fork", "--mount-proc", "--")


def second_job(job: AttackedJob) -> None:
    """Run another job of this user in a container that shares /dev/shm and the run directory."""
    before = shared_files(job)
    other = job.folder / "other"
    other.mkdir()
    (other / "struck").touch()
    command = [*_SECOND, sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]
    env = {**job.environment(), "TASKD_MANAGER": None, "TASKD_SECRET": None}
    process = job.launcher.start([*command, str(PROGRAM), str(other), "-1"], env=env, cwd=ROOT)
    assert process.wait(60) == 0, job.launcher.output(process)
    left = shared_files(job)
    assert before, "there was nothing to sweep"
    assert before <= left, f"{before - left} are gone"


def shared_files(job: AttackedJob) -> set[str]:
    """Return the files of the job's agent in shared memory."""
    return {str(path) for path in Path("/dev/shm").glob(f"taskd-{job.process.pid}-*/*")}


def cut_files(job: AttackedJob) -> None:
    """Cut boxes in shared memory short while other processes have them mapped."""
    cut = 0
    for path in Path("/dev/shm").glob(f"taskd-{job.process.pid}-*/box-*"):
        os.truncate(path, 0)
        cut += 1
    assert cut >= RANKS, "there was nothing to cut"


def cut_memory(job: AttackedJob, what: str) -> None:
    """Cut each piece of the agent's memory with this name as far as the kernel allows, and fill it up."""
    job.wait(lambda: len(memory_of(job, what)) >= RANKS, f"memory of {what}")
    for path in memory_of(job, what):
        for cut in (partial(os.truncate, path, 0), partial(os.open, path, os.O_RDWR | os.O_TRUNC)):
            try:
                cut()
            except PermissionError:
                continue
            raise AssertionError(f"{path} was cut")


def memory_of(job: AttackedJob, what: str) -> list[Path]:
    """Return the non-empty memory of that kind that torchrun holds, by its paths in /proc."""
    links = Path(f"/proc/{job.process.pid}/fd").iterdir()
    named = [link for link in links if os.path.lexists(link) and f"taskd-{what}-" in os.readlink(link)]
    return [link for link in named if link.stat().st_size]


def sweep(job: AttackedJob, *folders: str) -> None:
    """Empty the folders in which the agent, its manager and its ranks have files."""
    where = {"shm": shared_folders(job), "run": [job.run_dir], "tmp": [job.folder / "tmp"]}
    for folder in (found for name in folders for found in where[name]):
        assert folder.is_dir(), f"there was nothing to sweep at {folder}"
        shutil.rmtree(folder)


def shared_folders(job: AttackedJob) -> list[Path]:
    """Return the folders of the job's agent in shared memory."""
    found = [*Path("/dev/shm").glob(f"taskd-{job.process.pid}-*")]
    assert found, "the agent has no folder in shared memory"
    return found


def sweep_and_kill_twice(job: AttackedJob) -> None:
    """Sweep the folder before each of two recoveries. The second one needs files made after the first sweep."""
    for _ in range(2):
        sweep(job, "shm")
        took_ms = job.recovers_ms()
        assert took_ms < USUAL_MS, f"a recovery took {took_ms} ms"


def own_temporary_folder(job: AttackedJob) -> None:
    """Give the job a folder of its own for temporary files."""
    folder = job.folder / "tmp"
    folder.mkdir()
    job.env |= {"TMPDIR": str(folder)}


def cut_the_core(job: AttackedJob) -> None:
    """Put half of a core in place of the installed one while the job runs."""
    (core,) = (job.folder / "install" / "taskd").rglob(CORE.name)
    half = core.with_name("half")
    half.write_bytes(core.read_bytes()[: core.stat().st_size // 2])
    half.rename(core)


def own_install(job: AttackedJob) -> None:
    """Give the job a copy of taskd that users preload by its path."""
    folder = job.folder / "install"
    shutil.copytree(Path(taskd.__file__).parent, folder / "taskd", ignore=shutil.ignore_patterns("__pycache__"))
    (gate,) = (folder / "taskd").rglob(GATE.name)
    job.env |= {
        "PYTHONPATH": f"{folder}:{PROGRAM.parents[2]}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": str(gate),
        "TASKD_STANDBY": "0",  # only ranks that start cold load it
    }


def a_first_process_died(job: AttackedJob) -> None:
    """Leave a folder with a large file, as the dead agent of a former container does that was process 1 there."""
    left = Path("/dev/shm") / f"taskd-1-{job.folder.name}{os.getpid()}"
    left.mkdir(mode=0o700)
    (left / "copy-0-0-0").write_bytes(bytes(1 << 20))
    job.also.callback(shutil.rmtree, left, ignore_errors=True)
    job.found["left"] = str(left)


def nothing_is_left(job: AttackedJob) -> None:
    """Check that this job's agent has removed it. It does not remove the folder of a living process of that name."""
    assert not Path(job.found.pop("left")).exists(), "what a dead agent has left is still there"


def damaged_records(job: AttackedJob) -> None:
    """Fill the folder of another job with noise, pipes and escapes. `taskd blackbox` reads all of them."""
    other = job.run_dir / "other"
    (other / "faults").mkdir(parents=True)
    event = {"event": "diagnosis", "fault": 1, "sentence": _ESCAPES, "time": 1e400, "node_rank": _ESCAPES}
    (other / "journal.jsonl").write_text(json.dumps(event) + "\n{" + "[" * 5000 + "\n\xff\xfe\0\n")
    os.mkfifo(other / "faults" / "0001.json")
    (other / "faults" / "0002.json").write_bytes(os.urandom(20_000))
    os.mkfifo(job.run_dir / "pipe")
    for words in ((), ("other",), ("other", "--fault", "1"), ("other", "--fault", "2"), ("pipe",)):
        shown = subprocess.run(
            [sys.executable, "-m", "taskd", "blackbox", *words],
            env={**os.environ, "TASKD_RUN_DIR": str(job.run_dir)}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        text = (shown.stdout + shown.stderr).decode()
        assert "Traceback" not in text, text
        assert not set(text) & set("\x1b\x07\x9b\0"), repr(text)


def show_environment(job: AttackedJob) -> None:
    """Check that the environment of each rank, which trackers of experiments publish, has no secret."""
    for pid in job.pids.values():
        shown = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"TASKD_AGENT_SOCKET" in shown
        assert b"TASKD_SECRET=" not in shown


def error(text: str) -> dict[str, str | None]:
    """Let the rank fail with this text instead of being killed."""
    return {"ATTACK_ERROR": text.encode("utf-8", "surrogateescape").hex()}


def asks_cluster(text: str) -> dict[str, str | None]:
    return {**error(text), "TASKD_NODE_COMMAND": "true"}


def refused(name: str, variable: str, value: str) -> Attack:
    """Return an attack by an invalid setting: torchrun ends before a rank starts, and reports the reason once."""
    return Attack(name, _SAME, nothing, env={variable: value}, manager=False, refused=True, log=f"{variable}: found")


MISHAPS = (
    Attack("a second job in another container", _SAME, second_job),
    Attack("boxes are cut", _SAME, cut_files, manager=False),
    Attack("positions are cut", _SAME, lambda job: cut_memory(job, "position"), manager=False),
    Attack("copies are cut", _SAME, lambda job: cut_memory(job, "copy"), manager=False, env={"ATTACK_BACKUP": "2"}),
    Attack(
        "a preloaded core is cut while the job runs",
        _SAME,
        cut_the_core,
        prepare=own_install,
        manager=False,
        in_place=False,
        log="rank 1 runs without its black box",
    ),
    Attack("/dev/shm is swept", _SAME, lambda job: sweep(job, "shm"), log=SWEPT),
    Attack("/dev/shm is swept between recoveries", _SAME, sweep_and_kill_twice, manager=False, restarts=9),
    Attack(
        "the folder of temporary files is swept",
        _SAME,
        lambda job: sweep(job, "tmp"),
        prepare=own_temporary_folder,
        manager=False,
    ),
    Attack(
        "the run directory is swept",
        _SAME,
        lambda job: sweep(job, "run"),
        manager=False,
        in_place=False,
    ),
    Attack("leftovers of an agent that was process 1", _SAME, nothing_is_left, prepare=a_first_process_died),
    Attack("damaged records beside it", _SAME, damaged_records, manager=False),
    Attack("the environment of the ranks", _OWN, show_environment),
    Attack("an exception with NUL and escapes", _OWN, nothing, env=asks_cluster(f"no {_ESCAPES}\n\nfile")),
    Attack("an exception that is not UTF-8", _OWN, nothing, env=error("no file \udcff\udcfe"), manager=False),
    Attack("an exception of 40,000 characters", _OWN, nothing, env=error("x" * 40_000), manager=False),
    refused("a job of dots", "TASKD_JOB_ID", ".."),
    refused("a secret of five letters", "TASKD_SECRET", "short"),
)
