"""The job on this node, for a scenario: its agent, its ranks, the processes of a node check.

Rules:

1. A job is identified by its agent: a living process that itself has the agent's directory open. Directories that a
   dead agent has left mean nothing, whichever process has its number now.
2. A process that is no descendant of the agent belongs to another program, whatever its name.
3. A rank is the owner of the newest black box of its local rank in the agent's directory. The box holds the rank in the
   job once a process has claimed it. A node's ranks are consecutive, so one box gives them all.
"""

import os
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from taskd.config.job import job_id
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.core.nodecheck.probes import CHECK_NAME
from taskd.errors import ChaosError, ShimError
from taskd.runtime.box.blackbox import Box, Life, Reading
from taskd.runtime.chaos.target import TargetProcess, descends, target
from taskd.runtime.folders.ownfolder import owner_of_folder
from taskd.runtime.folders.rank_folders import parents
from taskd.runtime.records.lookup import view
from taskd.runtime.system.processes import children, read
from taskd.wire.kinds import JobRank, LocalRank

CHECK_MODULE: Final = "taskd.adaptors.nodecheck"
"""Module of a check that is started cold: `python -m …`."""
_DIRECTORY: Final = re.compile(r"taskd-(\d+)-.+")
_BOX: Final = re.compile(r"box-(\d+)-(\d+)")
_SECOND_NS: Final = 1_000_000_000
_TORCHRUN: Final = re.compile(r"(^|/)torchrun$|^torch\.distributed\.run$")


@dataclass(frozen=True, slots=True)
class Rank:
    """A living rank. `step` is the newest that it has committed, -1 if none."""

    number: JobRank
    incarnation: int
    process: TargetProcess
    step: int


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job on this node. `directory` is its agent's."""

    agent: TargetProcess
    directory: Path
    job_id: str
    run_dir: Path

    @property
    def env(self) -> dict[str, str]:
        """Variables that its torchrun was started with."""
        return _variables(self.agent.pid)

    def fits(self, name: str | None, directory: Path | None, agent: int | None) -> bool:
        """Return whether the job has this name, run directory and agent; None fits any."""
        same = directory is None or self.run_dir.resolve() == directory.resolve()
        return same and name in (None, self.job_id) and agent in (None, self.agent.pid)

    @property
    def lives(self) -> bool:
        """True while its torchrun runs on this node."""
        return self.agent.stat is not None

    def owns(self, pid: int) -> bool:
        """Return whether a process belongs to the job."""
        return descends(pid, self.agent)

    def ranks(self) -> dict[JobRank, Rank]:
        """Return the ranks that live here. A rank that is being replaced may be missing for a moment."""
        owners = (_owner(said, incarnation) for _, incarnation, said in self._claimed())
        return {one.number: one for one in owners if one is not None and self.owns(one.process.pid)}

    def of_node(self) -> dict[LocalRank, JobRank]:
        """Return the ranks of this node, living or not; none before a process has claimed a box."""
        first = next((said.rank - local for local, _, said in self._claimed()), None)
        return {} if first is None else {local: JobRank(first + local) for local, _, _ in self._boxes()}

    def rank(self, number: JobRank) -> TargetProcess | None:
        """Return the process of a rank; None while it has none. Raises `ChaosError` if it is not of this node."""
        ranks = self.ranks()
        if number in ranks:
            return ranks[number].process
        of_node = self.of_node().values()
        if self.lives and number not in of_node and (of_node or not any(self._boxes())):
            here = ", ".join(map(str, of_node)) or "none"
            raise ChaosError(
                f"found no rank {number} of job {self.job_id} on this node, expected one of its ranks here: {here}; "
                "play the scenario on the rank's own node"
            )
        return None

    def checks(self) -> list[TargetProcess]:
        """Return the processes of this node's check that live now."""
        called = (pid for pid in _pids() if is_check(pid) and self.owns(pid))
        return [found for pid in called if (found := target(pid, "node check")) is not None]

    def _boxes(self) -> Iterator[tuple[LocalRank, int, Path]]:
        """Yield local rank, incarnation and file of every box, the newest of a rank last."""
        named = ((_BOX.fullmatch(path.name), path) for path in self.directory.glob("box-*"))
        yield from sorted((LocalRank(int(name[1])), int(name[2]), path) for name, path in named if name is not None)

    def _claimed(self) -> Iterator[tuple[LocalRank, int, Reading]]:
        """Yield local rank, incarnation and reading of every box that a process has claimed, in the same order."""
        for local_rank, incarnation, path in self._boxes():
            try:
                with closing(Box.open(path)) as box:
                    said = box.read()
            except ShimError:
                continue  # it has just gone, or was cut
            if said.owner_pid > 0 and said.life is not Life.UNCLAIMED:
                yield local_rank, incarnation, said


def is_check(pid: int) -> bool:
    """Return whether a process is a check of its node by its name, whoever owns it."""
    if (read(f"/proc/{pid}/comm") or "").strip() == CHECK_NAME:
        return True
    words = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    return any(pair == ("-m", CHECK_MODULE) for pair in pairwise(words))


def find_jobs() -> list[LocalJob]:
    """Return the jobs with an agent on this node, in the order of their pids."""
    found = []
    for directory in _directories():
        named = _DIRECTORY.fullmatch(directory.name)
        agent = target(int(named[1]), "torchrun") if named is not None else None
        if agent is not None and _holds(agent.pid, directory):
            env = _environment(agent.pid)
            found.append(LocalJob(agent, directory, job_id(Source(env)), run_dir(Source(env))))
    return sorted(found, key=lambda job: job.agent.pid)


def choose_job(jobs: list[LocalJob], name: str | None, directory: Path | None, agent: int | None) -> LocalJob:
    """Return the one job that fits. Raises `ChaosError` if there is none or more than one."""
    fits = [job for job in jobs if job.fits(name, directory, agent)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        shown = "; ".join(f"--agent {job.agent.pid} (job {job.job_id}, run directory {job.run_dir})" for job in fits)
        raise ChaosError(f"found {len(fits)} jobs on this node, expected one: choose by --job, --run-dir, or {shown}")
    if jobs:
        shown = "; ".join(f"{job.job_id} in {job.run_dir}, torchrun {job.agent.pid}" for job in jobs)
        raise ChaosError(f"found no such job on this node, only: {shown}")
    raise ChaosError(_nothing())


def _nothing() -> str:
    """Return why there is no job, as far as that can be found out."""
    told = "found no job under taskd on this node, expected a torchrun of this user and this container with taskd on"
    for directory in _directories():
        named, owner = _DIRECTORY.fullmatch(directory.name), owner_of_folder(directory)
        if named is not None and owner not in (None, os.getuid()) and target(int(named[1]), "") is not None:
            return f"{told}; {directory} is another user's: run it as user {owner}"
    plain = next((pid for pid in _pids() if _is_torchrun(pid)), None)
    if plain is not None:
        return f"{told}; process {plain} is a torchrun without it: start it with TASKD_PROCESS_ENABLE=on"
    return f"{told}; start the job first, or give --wait SECONDS"


def _is_torchrun(pid: int) -> bool:
    words = (read(f"/proc/{pid}/cmdline") or "").split("\0")
    return any(_TORCHRUN.search(word) for word in words[:4])


def _directories() -> Iterator[Path]:
    """Yield the agents' directories, which `RankFiles` makes."""
    for parent in parents():
        yield from sorted(parent.glob("taskd-*-*"))


def _holds(pid: int, directory: Path) -> bool:
    """Return whether this very process has the directory open, to keep its lock."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # another user's process
        return False
    return any(_target(f"/proc/{pid}/fd/{name}") == str(directory) for name in names)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _environment(agent: int) -> dict[str, str]:
    """Return the agent's variables, with the run directory and job id that it gave to one of its processes."""
    for pid in children(agent):
        env = _variables(pid)
        if env.get("TASKD_AGENT_PID") == str(agent):
            return {
                **_variables(agent),
                **{name: env[name] for name in ("TASKD_RUN_DIR", "TASKD_JOB_ID") if name in env},
            }
    return _variables(agent)


def _variables(pid: int) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (read(f"/proc/{pid}/environ") or "").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _owner(said: Reading, incarnation: int) -> Rank | None:
    """Return the owner of a box, None if it does not live."""
    seen = view(said.owner_pid) if said.life is Life.HELD else None
    if seen is None or seen.started_ns > said.claimed_ns + _SECOND_NS:  # younger than its box: another process
        return None
    process = target(said.owner_pid, f"rank {said.rank}")
    return Rank(said.rank, incarnation, process, said.step) if process is not None else None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
