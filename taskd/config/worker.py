"""Configuration that an agent passes to the processes of its node, through their environment.

Rules:

1. Writer and reader stand side by side here: `environment()` is the inverse of `from_environment()`.
2. A process without `TASKD_AGENT_SOCKET` was not started by an agent. It gets None and runs as without taskd. With
   that variable, every other variable must be present and right. Otherwise the agent has a bug: `ConfigError`.
3. The processes inherit from torchrun the settings that a user has made for them: the checkpoint's directory, and the
   self-check. `environment()` writes the directory only if `checkpoint_dir` is set, and never the self-check.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskd.config import settings
from taskd.config.job import job_id
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.core.policy import SelfCheck
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank

_UNSAID: Final = JobRank(-1)


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of one rank's process.

    `blackbox`, `position`, `setup` and `marks` are None, and `copies` is empty, if the node could not provide them.

    Attributes:
        rank: rank in the job. It differs from torch's rank if fewer ranks (`members`) start anew. An agent leaves it at
            -1, because torchrun sets `RANK`.
        replicas: ranks of the full world; 0 if the full world starts.
        position: memory of random numbers and data position.
        setup: memory of the results of the set-up's collectives.
        setup_digest: digest of the predecessor's set-up; "" without one.
        marks: memory of the work that a trainer does only once.
        copies: memory for copies of states.
        checkpoint_dir: directory of a dump whose order names none; None if the environment names none either.
        allows_inexact: the user's setting for recoveries in place that are not exact. An agent does not write it.
    """

    agent_socket: Path
    agent_pid: int
    run_dir: Path
    incarnation: int
    generation: int
    rank: JobRank = _UNSAID
    term: int = 0
    joins: bool = False
    blackbox: Path | None = None
    position: Path | None = None
    setup: Path | None = None
    setup_digest: str = ""
    marks: Path | None = None
    copies: tuple[Path, ...] = ()
    checkpoint_dir: Path | None = None
    job_id: str = "default"
    members: tuple[JobRank, ...] = ()
    places: int = 0
    replicas: int = 0
    per_node: int = 1
    self_check: SelfCheck = SelfCheck.AUTO
    allows_inexact: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "WorkerConfig | None":
        """Read a worker's environment. Return None if no agent started this process. Raises `ConfigError`."""
        source = Source(os.environ if env is None else env)
        socket = source.path(settings.AGENT_SOCKET)
        if socket is None:
            return None
        own, members = source.whole(settings.RANK), _members(source)
        places = source.whole(settings.PLACES)
        return cls(
            agent_socket=socket,
            agent_pid=source.whole(settings.AGENT_PID),
            run_dir=run_dir(source),
            rank=members[own] if members else JobRank(own),
            members=members,
            places=places,
            replicas=places * source.whole(settings.LOCAL_WORLD_SIZE),
            per_node=source.whole(settings.LOCAL_WORLD_SIZE),
            incarnation=source.whole(settings.INCARNATION),
            generation=source.whole(settings.GENERATION),
            term=source.whole(settings.TERM),
            joins=source.switch(settings.JOINS),
            blackbox=source.path(settings.BLACKBOX),
            position=source.path(settings.POSITION),
            setup=source.path(settings.SETUP),
            setup_digest=source.text(settings.SETUP_DIGEST) or "",
            marks=source.path(settings.MARKS),
            copies=tuple(map(Path, filter(None, (source.text(settings.COPIES) or "").split(os.pathsep)))),
            checkpoint_dir=source.path(settings.CHECKPOINT_DIR),
            job_id=job_id(source),
            self_check=source.self_check(settings.SELF_CHECK),
            allows_inexact=source.allows(settings.INEXACT),
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that make a process this worker."""
        values = {
            settings.AGENT_SOCKET: self.agent_socket,
            settings.AGENT_PID: self.agent_pid,
            settings.RUN_DIR: self.run_dir,
            settings.INCARNATION: self.incarnation,
            settings.GENERATION: self.generation,
            settings.TERM: self.term,
            settings.JOINS: "on" if self.joins else "off",
            settings.BLACKBOX: self.blackbox or "",
            settings.POSITION: self.position or "",
            settings.SETUP: self.setup or "",
            settings.SETUP_DIGEST: self.setup_digest,
            settings.MARKS: self.marks or "",
            settings.COPIES: os.pathsep.join(map(str, self.copies)),
            settings.MEMBERS: as_ranges(self.members),
            settings.PLACES: self.places,
        }
        if self.checkpoint_dir is not None:
            values[settings.CHECKPOINT_DIR] = self.checkpoint_dir
        return {setting.name: str(value) for setting, value in values.items()}


def as_ranges(ranks: Sequence[JobRank]) -> str:
    """Return ranks in their order, as ranges: `0-3,8-11`. The length of the text depends on the ranges only."""
    ends: list[list[int]] = []
    for rank in ranks:
        if ends and ends[-1][1] == rank - 1:
            ends[-1][1] = rank
        else:
            ends.append([rank, rank])
    return ",".join(f"{first}-{last}" for first, last in ends)


def _members(source: Source) -> tuple[JobRank, ...]:
    text = source.text(settings.MEMBERS) or ""
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
        members = tuple(JobRank(rank) for first, last in ends for rank in range(first, last + 1))
        if members and not 0 <= source.whole(settings.RANK) < len(members):
            raise ValueError(text)
    except ValueError as error:
        raise ConfigError(
            f"{settings.MEMBERS.name}: found {text!r}, expected ranges of ranks such as 0-3,8-11, more than RANK; "
            "unset it: only an agent of taskd sets it"
        ) from error
    return members


@dataclass(frozen=True)
class TemplateConfig:
    """Configuration of the template: the process that imports the workers' modules and forks standbys."""

    agent_socket: Path
    agent_pid: int
    preload: tuple[str, ...] = ()
    shared: bool = False
    """True if standbys share the template's memory until they write to it. Inherited from torchrun's environment."""
    checks: bool = True
    """True if the job checks itself. Inherited like `shared`."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "TemplateConfig":
        """Read a template's environment. Raises `ConfigError`."""
        source = Source(os.environ if env is None else env)
        return cls(
            agent_socket=source.required_path(settings.AGENT_SOCKET),
            agent_pid=source.whole(settings.AGENT_PID),
            preload=source.modules(settings.PRELOAD),
            shared=source.switch(settings.STANDBY_SHARED),
            checks=source.self_check(settings.SELF_CHECK) is not SelfCheck.OFF,
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that make a process this template."""
        return {
            settings.AGENT_SOCKET.name: str(self.agent_socket),
            settings.AGENT_PID.name: str(self.agent_pid),
            settings.PRELOAD.name: ",".join(self.preload),
        }
