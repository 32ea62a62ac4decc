"""Set-up of a rank's process: black box, parent watch, its own keys in the store, the link to the agent."""

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Final

from taskd.adaptors.faults import last_words
from taskd.adaptors.seams.seam import installed
from taskd.adaptors.seams.worker import STORE
from taskd.adaptors.torchrun.imports import after_import
from taskd.adaptors.torchrun.modules import installed_modules
from taskd.config import settings
from taskd.config.process import environment
from taskd.config.worker import WorkerConfig
from taskd.core.policy import SelfCheck
from taskd.errors import ShimError
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around
from taskd.wire.text import line

if TYPE_CHECKING:
    from taskd.adaptors.groups.world import GroupWorld
    from taskd.runtime.box.recorder import NullRecorder, Recorder
    from taskd.runtime.worker.worker import WorkerLink

logger = logging.getLogger(__name__)

_ROUND: Final = settings.ROUND.name
_GENERATION: Final = settings.GENERATION.name
_TERM: Final = settings.TERM.name
_STORE_KEY: Final = settings.STORE_KEY.name

_recorder: "Recorder | NullRecorder | None" = None
_world: "GroupWorld | None" = None
_current: "Callable[[], WorkerLink | None] | None" = None


def prepare_rank(isolated: AbstractContextManager[None]) -> None:
    """Make this process a rank of its agent. Later imports, which come with torch, are done `isolated`."""
    global _current  # noqa: PLW0603 - one per process
    config = WorkerConfig.from_environment()
    if config is None:
        return
    after_import("torch.distributed.rendezvous", prefix_stores)
    _attach(config)
    from taskd.runtime.worker.worker import current, start_from_environment

    _current = current
    link = start_from_environment(installed_modules)
    if link is not None:
        if config.self_check is not SelfCheck.OFF and not link.joins:
            from taskd.runtime.worker.set_up_files import note_set_up_files

            note_set_up_files()
        after_import("torch", lambda _torch: _install_runtime(link, isolated))
        after_import("torch.utils.file_baton", lambda module: _watch_builds(module, isolated))


def _install_runtime(link: "WorkerLink", isolated: AbstractContextManager[None]) -> None:
    """Install the parts that need torch. Runs inside the script's own `import torch`, and must not make it fail."""
    global _world  # noqa: PLW0603 - one per process
    try:
        with isolated:
            from taskd.adaptors.seams.parts import IN_RANK, IN_WORKER

            for part in IN_RANK:
                if part.misfit() and link.config.rank == 0:
                    logger.warning("%s", part.misfit())
            misfit = IN_WORKER.misfit()
            if misfit:
                link.refuse(no_rebuild=misfit, no_newcomer=misfit)
                return
            from taskd.adaptors.training.runtime import install

            _world = install(link, int(environment()["WORLD_SIZE"]), _meetings.rebuilt)
    except Exception:
        logger.exception("taskd could not prepare this rank's process groups; the script runs without recovery")


def _watch_builds(module: ModuleType, isolated: AbstractContextManager[None]) -> None:
    """Watch the locks of a script that builds extensions. An error here must not make the build fail."""
    try:
        with isolated:
            from taskd.adaptors.batons import watch_batons
        watch_batons(module)
    except Exception:
        logger.exception("taskd could not watch the locks of extensions; those of a killed rank stay")


def _attach(config: WorkerConfig) -> None:
    from taskd.runtime.box.recorder import open_recorder

    global _recorder  # noqa: PLW0603 - one per process
    _recorder = recorder = open_recorder()  # loads the core, which must come before torch
    reason = getattr(recorder, "reason", "")
    if config.blackbox is not None:
        try:
            recorder.attach(config.blackbox, config.rank, config.incarnation)
        except ShimError as error:
            reason = str(error)
        if reason:
            logger.warning("rank %d runs without its black box: %s", config.rank, reason)
    if config.blackbox is None or reason:
        recorder.watch_parent(config.agent_pid)


def mark_round(round_name: str, generation: str) -> dict[str, str]:
    """Return the variable that names a start of the whole worker group, for the processes that torchrun starts.

    It contains their generation: on a node with a younger agent, the same start may have another generation.
    """
    return {_ROUND: f"{round_name}@{generation}"}


def store_prefix(env: Mapping[str, str]) -> str:
    """Return the prefix of the keys that a process with this environment uses, equal on all nodes of one world."""
    round_name, _, first = env.get(_ROUND, "0@0").partition("@")
    generation, key = env.get(_GENERATION, first), env.get(_STORE_KEY)
    names = ["taskd", *([key] if key else []), round_name]
    if generation != first:
        names.append(f"{generation}.{env.get(_TERM, '0')}")  # two managers may both order this generation
    return "/".join(names)


class Meetings:
    """Keys of torchrun's store for the meetings of a world's ranks, equal for all of them.

    A script may destroy its groups and meet the others anew. The first meeting's keys would then mislead the second
    one. So each meeting has its own keys.
    """

    def __init__(self) -> None:
        self._rebuilt = ""
        self._number = 0
        self._made: int | None = None

    def rebuilt(self, generation: int) -> None:
        """Record that this process's world was rebuilt: if its script meets anew, it does so where its new peers do."""
        self._rebuilt, self._number, self._made = f"taskd/rebuilt/{generation}", 0, None

    def prefix(self, env: Mapping[str, str], made: int) -> str:
        """Return the prefix of the meeting that begins. `made`: number of default groups that the script has made."""
        self._number += self._made is not None and made > self._made
        self._made = made
        return (self._rebuilt or store_prefix(env)) + (f"/{self._number}" if self._number else "")


_meetings: Final = Meetings()


def prefix_stores(rendezvous: ModuleType) -> None:
    """Give every world its own keys in torchrun's store, where `init_process_group` meets. Once per process.

    torch shares one store between all starts of a group, and leftovers of dead processes mislead new ones. Stores
    elsewhere are the script's own, and their other clients may be no ranks of this job.
    """
    if STORE.difference(installed):
        return  # `_install_runtime` reports it

    def prefixed(hostname: str, port: int, *_: object, **__: object) -> Steps:
        store, env = (yield ORIGINAL), environment()
        if (hostname, str(port)) != (env.get("MASTER_ADDR"), env.get("MASTER_PORT")):
            return store
        prefix = _meetings.prefix(env, _world.made if _world is not None else 0)
        return sys.modules["torch.distributed"].PrefixStore(prefix, store)

    vars(rendezvous)["_create_c10d_store"] = around(rendezvous._create_c10d_store, prefixed)


def tell_agent(error: BaseException, hook: object) -> bool:
    """Report this process's fatal error to the agent and to the black box.

    Only a rank's error is reported, not that of a process that it has forked. `hook` would show the error. Returns
    whether that is needless: its predecessor died of the same error in its set-up, and one line has reported it.
    """
    if _recorder is not None:
        _recorder.last_words(error)
    link = _current() if _current is not None else None
    if link is None:
        return False
    said, kind = last_words(error)
    if not isinstance(error, Exception):  # an import here may take away the status of a KeyboardInterrupt
        link.last_words(line(said), kind)
        return False
    from taskd.adaptors.torchrun.set_up_ends import FormerEnd, is_stock, with_file

    said = line(with_file(said, error))
    link.last_words(said, kind)
    box = link.config.blackbox
    former = FormerEnd(box and box.with_name(f"failed-{link.config.rank}"))
    repeated = link.in_set_up and former.is_repeated(error) and is_stock(hook)
    if repeated:
        former.tell(error, said, link.config.rank)
    return repeated
