"""The runtime of one process for its recoveries: link, shim and process groups, whatever training function runs.

Rules:

1. A process has one runtime, made when torch has been imported. In a newcomer the script's set-up runs alone, without
   peers, until the first resilient function is reached.
2. At its end the process waits for threads that need the interpreter (`leaving.py`).
"""

import atexit
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from taskd.adaptors.groups.nccl import Verified
from taskd.adaptors.groups.setup_results import Recording, Replay
from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.seams.parts import FOR_FREEING
from taskd.adaptors.training import failures, leaving
from taskd.adaptors.training.copies.backups import Backups
from taskd.adaptors.training.grace import await_step
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals, matters, tell_inexact
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.script.standing import see_standing
from taskd.adaptors.training.sharding.layout import OwnWrappers, repoint
from taskd.adaptors.training.tripwire import Tripwire, interrupt
from taskd.core.diagnosis.evidence import Standing
from taskd.core.policy import SelfCheck
from taskd.errors import ShimError
from taskd.runtime.box.recorder import NullRecorder, Recorder, open_recorder
from taskd.runtime.worker import worker
from taskd.wire.messages import WorldPlan

logger = logging.getLogger(__name__)


class RunningFunction(Protocol):
    """The running resilient function, as the rest of the process uses it."""

    recovery: StateRecovery
    backups: Backups
    inside: bool

    def watch_commit(self) -> None:
        """Observe the next commit."""


class Runtime:
    """The means of one process for its recoveries: the link to the agent, the shim, and the process groups."""

    def __init__(self, link: worker.WorkerLink, world_size: int, rebuilt: Callable[[int], None]) -> None:
        self.link, self._rebuilt = link, rebuilt
        self.rank = link.config.rank
        self.recorder: Recorder | NullRecorder = open_recorder()
        frees = isinstance(self.recorder, Recorder) and not FOR_FREEING.misfit()
        self.world = GroupWorld(self.recorder.break_collectives if frees else None, self.recorder.naming)
        self.session: RunningFunction | None = None
        """The running resilient function; None outside of one."""
        self.function: object = None
        """Name of the resilient function that was entered last."""
        self._tripwire = Tripwire(self._is_inside, interrupt)
        self.verified = Verified(self.world.groups, self.leave_wait)
        failures.watch(lambda: link.interrupted, self._note_failure)
        self._building = False
        if link.config.blackbox is not None:
            try:
                self.recorder.attach(link.config.blackbox, self.rank, link.config.incarnation)
            except ShimError as error:
                logger.warning("rank %d runs without a black box: %s", self.rank, error)
        if link.joins:
            self.world.pretend(self.rank, world_size)
        else:
            self.world.observe(link.config.members)
        link.attach(self)
        self.refusals = Refusals(link.refuse, tells=self.rank == 0)
        self._setup: Recording | Replay | None = None
        if (path := link.config.setup) is not None:
            known, own = link.config.setup_digest, self.world.is_own
            self._setup = self.world.replay(path, known) if link.joins else Recording(path, own, link.recorded_setup)

    def end_setup(self, recovery: StateRecovery, backups: Backups) -> None:
        """End the set-up as the resilient function is entered, and report what stands in the way of recoveries.

        Its collectives are no longer recorded or replayed.

        Raises:
            RuntimeError: a newcomer's set-up has another result than its predecessor's.
        """
        setup, self._setup = self._setup, None
        unkept = None
        if isinstance(setup, Replay):
            setup.end()
            if setup.facts:
                from taskd.adaptors.training.proof.setup_facts import expect_same_setup

                expect_same_setup(recovery.parts, setup.facts)
        elif setup is not None:
            unkept = setup.end(self._facts(recovery.parts))
        self.refusals.add(*matters(recovery.parts, unkept or [], joins=self.link.joins, backs_up=backups.on))
        if self.rank == 0 and not self.link.joins and not backups.keeps_own:
            tell_inexact(recovery.parts)
        if strange := self.world.strangers():
            self.refusals.add(Matter(strange, "Groups of new_group can be recovered in place.", no_rebuild=True))

    def _facts(self, parts: Parts) -> dict[str, str]:
        """Return the facts to compare a newcomer's set-up with; none in a job without the self-check."""
        if self.link.config.self_check is SelfCheck.OFF:
            return {}
        from taskd.adaptors.training.proof.setup_facts import setup_facts

        return setup_facts(parts)

    def refuse_rebuild(self, reason: str) -> None:
        """Form no further world with this process: all processes must start anew."""
        self.refusals.add(Matter(reason, "", no_rebuild=True))

    def break_collectives(self) -> None:
        """Free the main thread, wherever it is stuck. If it continues all the same, it is stopped at its next call."""
        await_step(self.session)
        self._tripwire.lay()
        self.world.outdate(self.link.pause_generation)  # before `_building` is read: a build may begin just now
        (self.world.interrupt if self._building else self.world.abandon)()

    def forbid_collectives(self, why: str) -> AbstractContextManager[None]:
        """Make collectives of the calling thread raise `RuntimeError(why)` within the context."""
        return self._tripwire.forbid(why)

    def mend(self) -> None:
        """Let collectives work again."""
        self._tripwire.lift()
        self.recorder.mend()

    def _note_failure(self) -> None:
        if self.session is not None:
            self.session.recovery.failures.note()

    def _is_inside(self) -> bool:
        session = self.session
        return session is not None and session.inside and not session.recovery.committing

    def standing(self, stack: Sequence[str], usual: Standing) -> Standing:
        """Return the present activity of this process."""
        session = self.session
        return see_standing(stack, usual, () if session is None else session.recovery.parts.modules)

    def leave_at_commit(self) -> None:
        """Have the main thread leave the resilient function, at its next commit at the latest."""
        session = self.session
        if session is not None:
            session.watch_commit()

    def leave_wait(self) -> None:
        """Raise `Interrupted` if a pause is pending and the resilient function is running.

        The main thread calls this in a wait that no broken collective ends.
        """
        if self.link.interrupted and self._is_inside():
            interrupt()

    def form(self, plan: WorldPlan, recovery: StateRecovery, more: Sequence[int] = ()) -> list[list[int]]:
        """Form the groups of the plan's generation, point the model's wrappers at them, and return `more` of each rank.

        Raises:
            RebuildError: the world could not be formed.
        """
        self._building = True
        try:
            own = OwnWrappers(recovery, plan)
            table = self.world.rebuild(plan, self.rank, [*own.numbers, *more])
            self._rebuilt(plan.generation)
            repoint(recovery, self.world, plan, self.refuse_rebuild, table)
        finally:
            self._building = False
        self.world.destroy_retired()
        return [row[len(own.numbers) :] for row in table]


_runtime: Runtime | None = None


def install(
    link: worker.WorkerLink, world_size: int, rebuilt: Callable[[int], None] = lambda _generation: None
) -> GroupWorld:
    """Make this process's runtime; return its process groups.

    Called once, when torch has been imported and before the script makes a group. `rebuilt` is called with the
    generation of each world that this process enters.
    """
    global _runtime  # noqa: PLW0603 - one per process
    _runtime = Runtime(link, world_size, rebuilt)
    atexit.register(leaving.settle, _runtime.world, link.pid)  # registered first, so it runs after the script's own
    return _runtime.world


def current() -> Runtime | None:
    """Return the runtime of this process; None without an agent, and in forked children."""
    return _runtime if worker.current() is not None else None
