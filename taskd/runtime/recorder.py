"""The worker's side of the black box: what the process says of itself, and the breaking of stuck collectives.

Rules:

1. Nothing here may slow a step: every call is one call into C, without a lock.
2. A worker whose core cannot be loaded runs on with a `NullRecorder`; `reason` says what was missing.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from taskd.errors import ShimError
from taskd.runtime.shim import check, core, interface, load_core


class Phase(IntEnum):
    """What a worker's main thread is about, as its box shows it."""

    STARTING = 0
    TRAINING = 1
    PAUSED = 2
    REBUILDING = 3
    RESTORING = 4
    FINISHED = 5


@dataclass(frozen=True)
class Census:
    """What gloo holds in this process, whether its calls come through the core, and how much was broken so far."""

    sockets: int = 0
    waiters: int = 0
    sockets_hooked: bool = False
    waits_hooked: bool = False
    broken: bool = False
    shut: int = 0
    kicked: int = 0


class Recorder:
    """The worker's side. Before `attach`, what is recorded is lost; breaking works without a box too."""

    def __init__(self) -> None:
        load_core()
        self._core = core()

    def attach(self, path: Path, rank: int, incarnation: int) -> None:
        """Claim the box and start the native thread. Again with the same path: set rank and incarnation.

        With `TASKD_AGENT_PID` set, the process from now on ends with its agent. Raises `ShimError`.
        """
        doing = f"black box {path} cannot be attached"
        check(self._core.taskd_attach(os.fsencode(path), rank, incarnation), doing)

    @property
    def attached(self) -> bool:
        """Whether this process has a box. A forked child has none."""
        return bool(self._core.taskd_attached())

    def watch_parent(self, pid: int) -> None:
        """End this process, with its group if it leads one, within 200 ms of the end of `pid`."""
        check(self._core.taskd_watch_parent(pid), f"process {pid} cannot be watched")

    def step(self, step: int) -> None:
        """Step `step` is committed, and the state is clean."""
        self._core.taskd_step(step)

    def dirty(self, dirty: bool) -> None:
        """Whether the state is no longer that of the committed step."""
        self._core.taskd_dirty(dirty)

    def phase(self, phase: Phase) -> None:
        """What the main thread is about to do."""
        self._core.taskd_phase(phase)

    def gil_beat(self) -> None:
        """Some Python thread could run."""
        self._core.taskd_gil_beat()

    def break_collectives(self) -> int:
        """Break gloo's sockets and waits, and hold them broken until `mend`. Returns how many were hit."""
        return check(self._core.taskd_break(), "collectives cannot be held broken")

    def mend(self) -> None:
        """Let new groups be formed."""
        self._core.taskd_mend()

    def census(self) -> Census:
        """What gloo holds in this process."""
        out = interface().new("struct taskd_census *")
        self._core.taskd_census(out)
        return Census(
            sockets=out.sockets,
            waiters=out.waiters,
            sockets_hooked=bool(out.hooks & self._core.TASKD_HOOK_SOCKETS),
            waits_hooked=bool(out.hooks & self._core.TASKD_HOOK_WAITS),
            broken=bool(out.broken),
            shut=out.shut,
            kicked=out.kicked,
        )


class NullRecorder:
    """Stands in for a `Recorder` where the core is missing; `reason` says why. It records and breaks nothing."""

    attached = False

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def attach(self, path: Path, rank: int, incarnation: int) -> None:
        """Nothing."""

    def watch_parent(self, pid: int) -> None:
        """Nothing."""

    def step(self, step: int) -> None:
        """Nothing."""

    def dirty(self, dirty: bool) -> None:
        """Nothing."""

    def phase(self, phase: Phase) -> None:
        """Nothing."""

    def gil_beat(self) -> None:
        """Nothing."""

    def break_collectives(self) -> int:
        """Nothing; 0 were hit."""
        return 0

    def mend(self) -> None:
        """Nothing."""

    def census(self) -> Census:
        """Nothing is known."""
        return Census()


def open_recorder() -> Recorder | NullRecorder:
    """The recorder of this process, or a null one if the core cannot be loaded."""
    try:
        return Recorder()
    except ShimError as error:
        return NullRecorder(str(error))
