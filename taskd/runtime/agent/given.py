"""Equipment of a rank's new process: its environment, its output files, and the order to a standby."""

import logging
import os
from collections.abc import Iterable, Mapping
from functools import cache

from taskd.config.process import preload_with
from taskd.config.settings import CLEANING
from taskd.core.agent import Start
from taskd.runtime.agent.ports import Logs, WorkerHost
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.box.elf import flaw
from taskd.runtime.box.shim import REINSTALL, library_path
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import Directive
from taskd.wire.standbys import Become

logger = logging.getLogger(__name__)


def new_environment(
    files: RankFiles, host: WorkerHost, directive: Directive | None, start: Start, local: LocalRank
) -> tuple[dict[str, str], Logs]:
    """Return the whole environment of the process that `start` orders, and its logs, which are opened."""
    given, per_node = host.environment(local), len(host.local_ranks)
    shape = Shape() if directive is None else Shape.of(directive, start.rank, per_node, given, joins=start.joins)
    config = files.prepare(local, start.incarnation, start.generation, shape, start.term, joins=start.joins)
    logs = host.open_logs(local, start.incarnation)
    env = {
        **given,
        **shape.environment,
        **config.environment(),
        **preload(),
        **logs.environment,
        "TORCHELASTIC_RESTART_COUNT": str(start.generation),
    }
    if host.cleaning:
        env[CLEANING.name] = ",".join(map(str, host.cleaning))
    return env, logs


def working_folder() -> bytes | None:
    """Return the folder in which this process works; None if it was removed."""
    try:
        return os.getcwdb()
    except OSError:
        return None


def order_to_become(argv: Iterable[str], env: Mapping[str, str], logs: Logs, cwd: bytes | None) -> Become:
    """Return the order for a standby, with all texts as the kernel's bytes."""
    return Become(
        env={os.fsencode(name): os.fsencode(value) for name, value in env.items()},
        argv=tuple(map(os.fsencode, argv)),
        cwd=cwd,
        stdout=None if logs.stdout is None else os.fsencode(logs.stdout),
        stderr=None if logs.stderr is None else os.fsencode(logs.stderr),
    )


def preload() -> dict[str, str]:
    """Return `LD_PRELOAD` with the shim's gate before the user's own entries; empty if it is not installed.

    The result is also empty if the gate or the core that it loads is damaged: the loader would kill the process. A
    damaged core is reported where a box is made or attached.
    """
    gate = library_path("libtaskd.so")
    if not gate.exists():
        return {}
    if wrong := flaw(gate):
        _warn(f"{gate} {wrong}")
    return {} if wrong or flaw(library_path()) else preload_with(gate)


@cache
def _warn(found: str) -> None:
    """Log it once, not for each process."""
    logger.warning("ranks run without the preloaded library: %s; %s", found, REINSTALL)
