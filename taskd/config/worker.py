"""What the agent tells the processes of its node, through their environment.

Rules:

1. Writer and reader stand side by side here: `environment()` is the inverse of `from_environment()`.
2. A process without `TASKD_AGENT_SOCKET` was not started by an agent: it gets None and runs as without taskd.
   With it, everything else must be there and right, or the agent has a bug: `ConfigError`.
3. What a user has set for the processes themselves (the checkpoint's directory) they inherit from torchrun; it is
   written only where the agent knows better.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskd.config import settings
from taskd.config.manager import job_id
from taskd.config.reading import Source
from taskd.config.rundir import run_dir


@dataclass(frozen=True)
class WorkerConfig:
    """One rank's process. `blackbox` and `position` are None if the node could not provide the file.

    `checkpoint_dir` is where a dump goes; None if the job has no dump.
    """

    agent_socket: Path
    agent_pid: int
    run_dir: Path
    rank: int
    incarnation: int
    generation: int
    joins: bool = False
    blackbox: Path | None = None
    position: Path | None = None
    checkpoint_dir: Path | None = None
    job_id: str = "default"

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "WorkerConfig | None":
        """Read a worker's environment; None if no agent started this process. Raises `ConfigError`."""
        source = Source(os.environ if env is None else env)
        socket = source.path(settings.AGENT_SOCKET)
        if socket is None:
            return None
        return cls(
            agent_socket=socket,
            agent_pid=source.whole(settings.AGENT_PID),
            run_dir=run_dir(source),
            rank=source.whole(settings.RANK),
            incarnation=source.whole(settings.INCARNATION),
            generation=source.whole(settings.GENERATION),
            joins=source.switch(settings.JOINS),
            blackbox=source.path(settings.BLACKBOX),
            position=source.path(settings.POSITION),
            checkpoint_dir=source.path(settings.CHECKPOINT_DIR),
            job_id=job_id(source),
        )

    def environment(self) -> dict[str, str]:
        """The variables that make a process this worker. `RANK` is torchrun's to set."""
        values = {
            settings.AGENT_SOCKET: self.agent_socket,
            settings.AGENT_PID: self.agent_pid,
            settings.RUN_DIR: self.run_dir,
            settings.INCARNATION: self.incarnation,
            settings.GENERATION: self.generation,
            settings.JOINS: "on" if self.joins else "off",
            settings.BLACKBOX: self.blackbox or "",
            settings.POSITION: self.position or "",
        }
        if self.checkpoint_dir is not None:
            values[settings.CHECKPOINT_DIR] = self.checkpoint_dir
        return {setting.name: str(value) for setting, value in values.items()}


@dataclass(frozen=True)
class TemplateConfig:
    """The process that imports what workers need and makes standbys."""

    agent_socket: Path
    agent_pid: int
    preload: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "TemplateConfig":
        """Read a template's environment. Raises `ConfigError`."""
        source = Source(os.environ if env is None else env)
        return cls(
            agent_socket=source.required_path(settings.AGENT_SOCKET),
            agent_pid=source.whole(settings.AGENT_PID),
            preload=source.modules(settings.PRELOAD),
        )

    def environment(self) -> dict[str, str]:
        """The variables that make a process this template."""
        return {
            settings.AGENT_SOCKET.name: str(self.agent_socket),
            settings.AGENT_PID.name: str(self.agent_pid),
            settings.PRELOAD.name: ",".join(self.preload),
        }
