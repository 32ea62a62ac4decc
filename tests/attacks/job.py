"""The attacked job: `program.py` under torchrun on this machine, with a manager beside it or inside the agent.

Rules:

1. An attack begins when both ranks wait for it. Training goes on when the attack is over. Nothing is left to chance.
2. Users' own results are judged: the exit status, the weights, the processes that were replaced, and the log.
"""

import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd.config.address import LOOPBACK, Address
from tests.e2e.job import Job, Process
from tests.launch import Launcher, free_port
from tests.leaks import MARK

RANKS, VICTIM, NOBODY = 2, 1, -1
PROGRAM = Path(__file__).with_name("program.py")
SECRET = "for these attacks alone, 0123456789"
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For jobs that torchrun itself starts anew. In the store that it shares otherwise, gloo finds the addresses of ranks
that have ended. Every second such job then fails with plain torch 2.13 as well.
"""
WRONG_SECRET = "what a neighbour thinks of, 9876543210"


class AttackedJob(Job):
    """One job of two ranks.

    `also` closes everything that an attack has opened, when the job is over. `found` is shown in the report.
    """

    def __init__(self, launcher: Launcher, folder: Path, mark: str) -> None:
        super().__init__(launcher, folder, RANKS)
        self.cwd = folder  # `python -m` finds no other taskd there than the one in PYTHONPATH
        self.also = ExitStack()
        self.address = Address(LOOPBACK, free_port())
        self.env: dict[str, str | None] = {}
        self.manager: Process | None = None
        self.kills = 0
        self.found: dict[str, Any] = {}
        self._mark = mark

    def environment(self) -> dict[str, str | None]:
        """Return the variables: a manager at `address`, if the job has one, and the variables of the attack."""
        where = {"TASKD_MANAGER": str(self.address), "TASKD_SECRET": SECRET} if self.manager is not None else {}
        return {**super().environment(), "PYTHONPATH": str(PROGRAM.parents[2]), MARK: self._mark, **where, **self.env}

    def start_manager(self, *, secret: str | None = SECRET) -> None:
        """Start a manager by `python manager.py`, as the seed's scripts do."""
        program = self.folder / "manager.py"
        program.write_text(
            "from taskd.api import init_taskd_manager, start_taskd_manager\n"
            f"assert init_taskd_manager({{'job_id': 'default', 'node_nums': 1, 'proc_per_node': {RANKS}}})\n"
            "assert start_taskd_manager()\n"
        )
        env = {**self.environment(), "TASKD_MANAGER_PORT": str(self.address.port), "TASKD_SECRET": secret}
        self.manager = self.launcher.start(["python", program], env=env)

    def begin(self, victim: int = VICTIM, restarts: int = 3) -> None:
        """Start training."""
        self.launch(["--standalone", f"--max_restarts={restarts}", str(PROGRAM), str(self.folder), str(victim)])

    def await_training(self, *, warm: bool) -> None:
        """Wait until both ranks repeat and wait for the attack."""
        self.wait(lambda: all((self.folder / f"waits-{rank}").exists() for rank in range(RANKS)), "both ranks")
        if warm:
            self.warm()

    def recovers_ms(self) -> int:
        """Kill the victim while the ranks wait for the attack to end. Return the time until all train again."""
        done = len(self.named("recovered"))
        self.wait(self._is_settled, "a step of the newest world, and a standby")
        self.kills += 1
        killed_s = time.monotonic()
        os.kill(self.pids[VICTIM], signal.SIGKILL)
        return round(1000 * (self.recovered(done + 1)["monotonic_s"] - killed_s))

    def _is_settled(self) -> bool:
        newest = self.named("directive")[-1]["generation"]
        return self.named("first step")[-1]["generation"] == newest and self.named("standbys")[-1]["count"] > 0

    def struck(self) -> None:
        """Declare the attack over: let the ranks train, and one of them be killed."""
        (self.folder / "struck").touch()

    @property
    def has_begun(self) -> bool:
        """Return whether torchrun was started."""
        return self._process is not None

    @property
    def digests(self) -> set[str]:
        """Digests of the weights of all ranks that have ended well."""
        return {path.read_text() for path in self.folder.glob("digest-*")}

    @property
    def log(self) -> str:
        """Output of manager, torchrun and ranks."""
        return self.output + (self.launcher.output(self.manager) if self.manager is not None else "")

    def ports(self) -> list[int]:
        """Return the ports at which torchrun itself listens."""
        links = [path for path in Path(f"/proc/{self.process.pid}/fd").iterdir() if path.is_symlink()]
        inodes = {os.readlink(path) for path in links}
        tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        sockets = [line.split() for table in tables for line in table]
        listening = [one for one in sockets if one[3] == "0A" and f"socket:[{one[9]}]" in inodes]
        return sorted({int(one[1].rpartition(":")[2], 16) for one in listening})


@dataclass(frozen=True)
class Attack:
    """One attack, and its required result.

    Attributes:
        by: the attacker.
        strike: attacks while the ranks train; raises AssertionError if something was not refused.
        prepare: called before the job begins.
        log: regular expression of one line about the attack from manager, torchrun or rank; "" if there is none.
        manager: the job has a manager of its own, with a secret; else it is in the agent.
        in_place: the rank that is killed later is replaced, and the other one goes on; else all start anew.
        env: variables of the job.
        restarts: restarts that the job allows.
        refused: torchrun ends with status 2 before a rank starts; nothing is attacked.
    """

    name: str
    by: str
    strike: Callable[[AttackedJob], None]
    prepare: Callable[[AttackedJob], None] = lambda job: None
    log: str = ""
    manager: bool = True
    in_place: bool = True
    env: Mapping[str, str | None] = field(default_factory=dict)
    restarts: int = 3
    refused: bool = False


def undisturbed(folder: Path) -> str:
    """Return the digest of the same training under plain torchrun."""
    folder.mkdir()
    mark = uuid.uuid4().hex
    job = AttackedJob(Launcher(folder, mark), folder, mark)
    (digest,) = digests_of_plain(job)
    return digest


def digests_of_plain(job: AttackedJob) -> set[str]:
    """Return the digests of this job's ranks under plain torchrun. No process of it outlives the call."""
    job.env = {"TASKD_PROCESS_ENABLE": None}
    job.struck()
    try:
        job.begin(NOBODY)
        assert job.end() == 0, job.output
        return job.digests
    finally:
        end_all(job.launcher, job.folder)


def perform(attack: Attack, folder: Path, wanted: str) -> tuple[AttackedJob, list[str]]:
    """Attack a job. Return the job after its end, and the defects."""
    mark = uuid.uuid4().hex
    launcher = Launcher(folder, mark)
    job = AttackedJob(launcher, folder, mark)
    job.env = dict(attack.env)
    try:
        attack.prepare(job)
        if attack.manager:
            job.start_manager()
        if not attack.in_place:
            job.env |= OWN_STORE
        job.begin(restarts=attack.restarts)
        if attack.refused:
            return job, judge_refusal(attack, job, job.end())
        job.await_training(warm=attack.in_place)
        before = job.pids
        attack.strike(job)
        job.struck()
        wrong = judge(attack, job, before, job.end(), wanted)
    except (AssertionError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"[:2000]]
    finally:
        job.also.close()
        (folder / "log").write_text(job.log if job.has_begun else "")
        end_all(launcher, folder)
    return job, wrong


def judge_refusal(attack: Attack, job: AttackedJob, status: int) -> list[str]:
    """Return the defects of a job that must not begin."""
    wrong = [] if status == 2 else [f"exit status {status}, expected 2"]
    if list(job.folder.glob("waits-*")):
        wrong.append("a rank was started")
    lines = (attack.log, "^error: ", "^hint: ")
    missing = [text for text in lines if len(re.findall(text, job.log, re.MULTILINE)) != 1]
    if missing:
        wrong.append(f"no line or several with {missing}, expected one: {job.log[:500]}")
    return wrong


def judge(attack: Attack, job: AttackedJob, before: dict[int, int], status: int, wanted: str) -> list[str]:
    """Return the defects of the job; an empty list if there are none."""
    wrong = []
    if status:
        wrong.append(f"exit status {status}")
    if job.digests != {wanted}:
        wrong.append(f"weights {sorted(job.digests)}, expected {wanted}")
    if not (job.folder / "killed").exists():
        wrong.append("no rank was killed after the attack")
    if attack.in_place:
        records: list[dict[str, Any]] = job.named("recovered")
        strategies = [record["strategy"] for record in records]
        if strategies != ["recover-in-place"] * (1 + job.kills):
            wrong.append(f"recoveries {strategies}, expected {1 + job.kills} in place")
        changed = [rank for rank, pid in job.pids.items() if before.get(rank) != pid]
        if changed != [VICTIM]:
            wrong.append(f"ranks {changed} have other processes, expected {VICTIM} alone")
    told = [line for line in job.log.splitlines() if attack.log and re.search(attack.log, line)]
    if attack.log and len(told) != 1:
        wrong.append(f"{len(told)} lines of the attack, expected one that matches {attack.log!r}")
    if attack.in_place and not attack.env.get("ATTACK_ERROR") and "Traceback (most recent" in job.log:
        wrong.append("a traceback is in the log")
    return wrong


def end_all(launcher: Launcher, folder: Path) -> None:
    with (folder / "ends").open("w") as sink, redirect_stdout(sink):
        launcher.end_all()


def reachable(host: str, port: int) -> bool:
    """Return whether a server accepts connections there."""
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError:
        return False
    return True
