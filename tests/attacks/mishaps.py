"""What the same user does by mistake, and what the job's own code does: no defence, but no harm beyond itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.attacks.job import PROGRAM, RANKS, Attack, AttackedJob
from tests.attacks.outsiders import nothing
from tests.e2e.job import ROOT

_SAME, _OWN = "the same user", "the job's own code"
_ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\0"
_SECOND = ("unshare", "--pid", "--fork", "--mount-proc", "--")


def second_job(job: AttackedJob) -> None:
    """Another job of this user begins and ends in a container that shares /dev/shm and the run directory."""
    before = shared_files()
    other = job.folder / "other"
    other.mkdir()
    (other / "struck").touch()
    command = [*_SECOND, sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]
    env = {**job.environment(), "TASKD_MANAGER": None, "TASKD_SECRET": None}
    process = job.launcher.start([*command, str(PROGRAM), str(other), "-1"], env=env, cwd=ROOT)
    assert process.wait(60) == 0, job.launcher.output(process)
    assert before <= shared_files(), f"{before - shared_files()} are gone"


def shared_files() -> set[str]:
    """What taskd's agents have in shared memory."""
    return {str(path) for path in Path("/dev/shm").glob("taskd-*/*")}


def cut_files(job: AttackedJob) -> None:
    """Boxes and positions in shared memory are cut short under those who have them mapped."""
    cut = 0
    for path in Path("/dev/shm").glob("taskd-*/*"):
        if path.is_file() and any(word in path.name for word in ("box", "position")):
            os.truncate(path, 0)
            cut += 1
    assert cut >= RANKS, "there was nothing to cut"


def damaged_records(job: AttackedJob) -> None:
    """The folder of another job holds noise, pipes and escapes; `taskd blackbox` looks at all of them."""
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
    """What trackers of experiments publish: the environment of each rank has no secret."""
    for pid in job.pids.values():
        shown = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"TASKD_AGENT_SOCKET" in shown
        assert b"TASKD_SECRET=" not in shown


def error(text: str) -> dict[str, str | None]:
    """The rank fails with this text instead of being killed."""
    return {"ATTACK_ERROR": text.encode("utf-8", "surrogateescape").hex()}


def asks_cluster(text: str) -> dict[str, str | None]:
    return {**error(text), "TASKD_NODE_COMMAND": "true"}


def refused(name: str, variable: str, value: str) -> Attack:
    """A setting that cannot be: taskd stays out of the job, and says why once."""
    return Attack(name, _SAME, nothing, env={variable: value}, manager=False, in_place=False, log=f"{variable}: found")


MISHAPS = (
    Attack("a second job in another container", _SAME, second_job),
    Attack("boxes and positions are cut", _SAME, cut_files, manager=False),
    Attack("damaged records beside it", _SAME, damaged_records, manager=False),
    Attack("the environment of the ranks", _OWN, show_environment),
    Attack("an exception with NUL and escapes", _OWN, nothing, env=asks_cluster(f"no {_ESCAPES}\n\nfile")),
    Attack("an exception that is not UTF-8", _OWN, nothing, env=error("no file \udcff\udcfe"), manager=False),
    Attack("an exception of 40,000 characters", _OWN, nothing, env=error("x" * 40_000), manager=False),
    refused("a job of dots", "TASKD_JOB_ID", ".."),
    refused("a secret of five letters", "TASKD_SECRET", "short"),
)
