"""What a new process of a rank is given: its environment, and the files of its output."""

import logging
from functools import cache

from taskd.config.process import preload_with
from taskd.core.agent import Start
from taskd.runtime.agent.ports import Logs, WorkerHost
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.box.elf import flaw
from taskd.runtime.box.shim import REINSTALL, library_path
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import Directive

logger = logging.getLogger(__name__)


def new_environment(
    files: RankFiles, host: WorkerHost, directive: Directive | None, start: Start, local: LocalRank
) -> tuple[dict[str, str], Logs]:
    """The whole environment of the process that was ordered by `start`, and its logs, which are opened."""
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
    return env, logs


def preload() -> dict[str, str]:
    """`LD_PRELOAD` with the shim's gate before what the user has there; nothing where it is not installed.

    Nothing, too, where it or the core that it loads is damaged: the loader would kill the process. Whoever makes or
    attaches a box tells of the core.
    """
    gate = library_path("libtaskd.so")
    if not gate.exists():
        return {}
    if wrong := flaw(gate):
        _warn(f"{gate} {wrong}")
    return {} if wrong or flaw(library_path()) else preload_with(gate)


@cache
def _warn(found: str) -> None:
    """Once, not for each process."""
    logger.warning("ranks run without the preloaded library: %s; %s", found, REINSTALL)
