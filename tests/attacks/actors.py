"""Attacks on ranks that no torchrun has started: two processes, each with an agent that is found by a name.

The names are read from /proc/net/unix, as any user of the machine can. Each attack has a kill: of a rank and its agent
before it, or of the rank alone after it. The rank is then started again. Both ranks must end well, and use nothing
that the attacker sends.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import taskd
from tests.attacks.job import end_all
from tests.attacks.leftovers import Code
from tests.attacks.outsiders import AS_NOBODY
from tests.e2e.job import ROOT
from tests.launch import Launcher, free_port

RANK = ROOT / "tests" / "actors" / "programs" / "rank.py"
SQUATTER = Path(__file__).with_name("squatter.py")
VICTIM, LIMIT_S = 1, 150.0


@dataclass
class ActorJob:
    """A job of two ranks, and the means to start them."""

    launcher: Launcher
    folder: Path
    also: ExitStack = field(default_factory=ExitStack)
    processes: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    checks: list[Callable[[], None]] = field(default_factory=list)
    """Checks of the attacker's results, called when the job is over."""

    def __post_init__(self) -> None:
        self.run_dir = self.folder / "run"
        self.known = names()
        self.manager = taskd.manager(2, run_dir=str(self.run_dir))
        self.also.callback(self.manager.close)
        self._port = free_port()
        (self.folder / "ticket").write_text(self.manager.ticket.to_json())

    def start(self, rank: int) -> None:
        """Start the rank's process. It waits at a step until the attack is over."""
        words = [sys.executable, RANK, self.folder / "ticket", rank, self._port, "main", "", self.folder / "struck"]
        env = {"TASKD_RUN_DIR": str(self.run_dir), "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        self.processes[rank] = self.launcher.start([str(word) for word in words], env=env)
        self.outputs.append(self.processes[rank])

    def names(self) -> set[str]:
        """Return the names of its agents."""
        return names() - self.known

    def wait(self, done: Callable[[], object], what: str) -> None:
        """Wait until `done` holds."""
        end_s = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < end_s, f"{what} has not come; {self.log}"
            time.sleep(0.02)

    @property
    def log(self) -> str:
        """Return the output of all ranks and their agents."""
        return "".join(map(self.launcher.output, self.outputs))

    def agent_of(self, rank: int) -> int:
        """Return the pid of a rank's agent."""
        ticket = str(self.manager.ticket.entrance(rank).names[0])
        shown = subprocess.run(["ss", "-xlpH"], capture_output=True, text=True, check=True).stdout
        (line,) = (line for line in shown.splitlines() if ticket in line)
        return int(line.partition("pid=")[2].partition(",")[0])


def names() -> set[str]:
    """Return the kernel's abstract names at which agents of ranks listen."""
    words = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return {word[-1] for word in words if word[-1].startswith("@taskd/")}


@dataclass(frozen=True)
class ActorAttack:
    """One attack on such a job.

    Attributes:
        by: the attacker.
        strike: attacks while both ranks wait; raises AssertionError if something was not refused.
        log: one line about the attack that a rank or an agent writes.
        agent_dies: the agent is killed together with the rank, before the attack.
    """

    name: str
    by: str
    strike: Callable[[ActorJob], None]
    log: str
    agent_dies: bool = True

    def play(self, folder: Path) -> tuple[dict[str, Any], str]:
        """Attack a job. Return the findings, with the defects under `wrong`, and a text for people."""
        launcher = Launcher(folder, uuid.uuid4().hex)
        job = ActorJob(launcher, folder)
        try:
            wrong = self._wrong(job)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            wrong = [f"{type(error).__name__}: {error}"[:2000]]
        finally:
            job.also.close()
            (folder / "log").write_text(job.log)
            end_all(launcher, folder)
        return {"name": self.name, "by": self.by, "wrong": wrong}, f"by {self.by}"

    def _wrong(self, job: ActorJob) -> list[str]:
        for rank in (0, VICTIM):
            job.start(rank)
        job.wait(lambda: all((job.folder / f"struck-{rank}").exists() for rank in (0, VICTIM)), "both ranks")
        if self.agent_dies:
            kill(job)
        self.strike(job)
        if not self.agent_dies:
            os.kill(job.processes[VICTIM].pid, signal.SIGKILL)
        job.processes[VICTIM].wait()
        (job.folder / "struck").touch()
        job.start(VICTIM)
        statuses = [job.processes[rank].wait(LIMIT_S) for rank in (0, VICTIM)]
        wrong = [f"rank {rank} ended with {status}" for rank, status in enumerate(statuses) if status]
        ends = [job.launcher.output(job.processes[rank]) for rank in (0, VICTIM)]
        weights = {line for text in ends for line in text.splitlines() if line.startswith("end ")}
        if len(weights) != 1:
            wrong.append(f"found weights {sorted(weights)}, expected the same of both ranks")
        if "joins" not in ends[1]:
            wrong.append("the new process did not join the job")
        if (job.folder / "owned").exists():
            wrong.append("code of the attacker was run")
        for check in job.checks:
            check()
        told = [line for line in job.log.splitlines() if self.log in line]
        if len(told) != 1:
            wrong.append(f"{len(told)} lines of the attack, expected one with {self.log!r}")
        return wrong


def kill(job: ActorJob) -> None:
    """Kill the agent of a rank, and the rank."""
    before = job.names()
    os.kill(job.agent_of(VICTIM), signal.SIGKILL)
    os.kill(job.processes[VICTIM].pid, signal.SIGKILL)
    job.wait(lambda: len(job.names()) < len(before), "the end of the name")
    (job.folder / "freed").write_text(next(iter(before - job.names())))


def squat(job: ActorJob, way: str) -> None:
    """Let another user take the name that has become free, and answer every process that knocks."""
    name = (job.folder / "freed").read_text()[1:]
    hers = job.folder / "hers"
    hers.mkdir()
    os.chmod(job.folder, 0o755)  # as /tmp would be
    os.chmod(job.folder.parent, 0o755)
    os.chown(hers, 65534, 65534)
    code = pickle.dumps([Code(job.folder / "owned")]).hex()
    words = [*AS_NOBODY, sys.executable, "-c", SQUATTER.read_text(), name, str(hers), way, code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    job.also.callback(process.wait)
    job.also.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"

    def told_nothing() -> None:
        process.kill()
        assert process.stdout is not None
        heard = set(process.stdout.read().split("\n")) - {"", "heard 0"}
        assert not heard, f"the attacker has heard {heard}"

    job.checks.append(told_nothing)


def knock_as(who: tuple[str, ...]) -> Callable[[ActorJob], None]:
    """Return an attack by a process without the job's key at the door of the rank's agent."""

    def strike(job: ActorJob) -> None:
        name = next(
            one for one in job.manager.ticket.entrance(VICTIM).names if any(one in known for known in job.names())
        )
        script = (
            "import socket, sys\n"
            "link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "link.connect(chr(0) + sys.argv[1])\n"
            "try:\n"
            "    link.send(bytes(32)); heard = len(link.recv(1000))\n"
            "    link.send(bytes(32)); heard += len(link.recv(1000))\n"
            "except OSError:\n"
            "    heard = 0\n"
            "print(heard)\n"
        )
        words = [*who, sys.executable, "-c", script, f"taskd/{os.geteuid()}/{name}"]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True, cwd="/")
        assert int(ran.stdout) in (0, 64), f"the agent has said {ran.stdout} bytes"

    return strike


_TAKEN = "a name of this rank's agent is taken: user 65534"
ACTORS = (
    ActorAttack(
        "variables at an actor's name", "another user", lambda job: squat(job, "variables"), log=_TAKEN,
    ),
    ActorAttack("a socket at an actor's name", "another user", lambda job: squat(job, "socket"), log=_TAKEN),
    ActorAttack(
        "another user at an agent's door", "another user", knock_as(AS_NOBODY), agent_dies=False,
        log="user 65534 is at the other end",
    ),
    ActorAttack(
        "no key at an agent's door", "the same user", knock_as(()), agent_dies=False, log="does not hold its job's key",
    ),
)  # fmt: skip
