"""The control thread of one rank's process: receives the agent's messages, and hands the main thread its orders.

Rules:

1. The machine of `taskd.core.worker` decides; this file locks, sends and wakes.
2. The control thread never runs the user's code. It breaks and mends collectives, and reports the process's activity,
   through the `Breaker` that the training adaptor gives it.
3. A forked child has no link: `current()` returns None there.
4. When torchrun is gone, this process ends: no orphan outlives it. When its agent alone has ended, no order is awaited
   any more, and the script goes on as under stock torchrun.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from taskd.config.worker import WorkerConfig
from taskd.core.diagnosis.evidence import Standing
from taskd.core.worker import Break, GiveUp, Input, Report, Wake, Worker, WorkerEvent, WorkerState
from taskd.errors import LinkError, TaskdError, WireError
from taskd.runtime.system.processes import stat
from taskd.runtime.worker.lifeline import Lifeline, to_agent
from taskd.runtime.worker.stacks import all_stacks, main_stack
from taskd.wire.accounts import Account, LockSeen
from taskd.wire.codec import decode_to_local, encode
from taskd.wire.messages import (
    Abandon,
    AccountRequest,
    Condition,
    FromLocal,
    Hello,
    Join,
    Modules,
    Pause,
    PeersKey,
    Refuses,
    Release,
    SawNonFinite,
    SelfReport,
    SetupRecorded,
    Stage,
    ToLocal,
    WorkerReport,
    WorldPlan,
)
from taskd.wire.state import StateHeld

logger = logging.getLogger(__name__)
Connect = Callable[[], socket.socket]
"""Function that returns a new connection to the agent, or raises `LinkError`."""
_STANDINGS: Final = {
    WorkerState.SETUP: Standing.STARTING,
    WorkerState.TRAINING: Standing.TRAINING,
    WorkerState.INTERRUPTED: Standing.TRAINING,
    WorkerState.PAUSED: Standing.PAUSED,
    WorkerState.JOINING: Standing.PAUSED,
    WorkerState.FINISHED: Standing.FINISHED,
    WorkerState.RELEASED: Standing.FINISHED,
}


class Breaker(Protocol):
    """Means to free a main thread that is stuck in a collective, and to allow collectives again."""

    def break_collectives(self) -> None:
        """Make every collective of this process fail at once, from now on until `mend`."""
        ...

    def mend(self) -> None:
        """Let collectives work again."""
        ...

    def leave_at_commit(self) -> None:
        """Make the main thread leave the resilient function: it calls `WorkerLink.committed` at its next commit."""
        ...

    def leave_wait(self) -> None:
        """Raise `Interrupted` if the resilient function must be left. The main thread waits, in no collective."""
        ...

    def standing(self, stack: Sequence[str], usual: Standing) -> Standing:
        """Return the process's phase, also by its main thread's stack.

        `usual`: the phase by orders and reports alone.
        """
        ...


class AbandonedError(TaskdError):
    """The agent has announced that no recovery will come. The main thread lets its own exception go on."""


class WorkerLink:
    """The process's end of the link to its agent."""

    def __init__(
        self, config: WorkerConfig, modules: Callable[[], tuple[str, ...]], connect: Connect | None = None
    ) -> None:
        self.config = config
        self.pid = os.getpid()
        self._modules = modules
        self._machine = Worker(generation=config.generation, joins=config.joins)
        self._changed = threading.Condition()
        self._breaker: Breaker | None = None
        self._broken = False
        self._lock_seen: LockSeen | None = None
        self.holding: Callable[[bool], StateHeld] = lambda _paused: StateHeld()
        """Called for each report, with True for one of a paused rank, which also reports its copies."""
        self.peers_key: str | None = None
        """Key by which the job's ranks recognize one another; "" without a secret, None before the agent's answer."""
        self._reported: Report | None = None
        self._orders: list[WorldPlan | AbandonedError | None] = []
        hello = Hello(
            role="worker",
            pid=self.pid,
            rank=config.rank,
            incarnation=config.incarnation,
            generation=config.generation,
        )
        connect = connect or partial(to_agent, config.agent_socket, config.agent_pid)
        self._line = Lifeline(connect, encode(hello), self._hear, self._hung_up)
        self._line.listen()

    # ---- the main thread's side

    @property
    def joins(self) -> bool:
        """True if this process comes into a living world and has not joined it yet."""
        return self._machine.joins

    @property
    def interrupted(self) -> bool:
        """True if the main thread must leave the resilient function."""
        return self._machine.state is WorkerState.INTERRUPTED

    @property
    def pause_generation(self) -> int:
        """Oldest world that may still be formed, as far as the agent has reported."""
        return self._machine.pause_generation

    @property
    def first_step(self) -> bool:
        """True until a step of the present world is committed."""
        return self._machine.first_commit

    @property
    def in_set_up(self) -> bool:
        """True until a resilient function is entered."""
        return self._machine.state is WorkerState.SETUP

    @property
    def inside(self) -> bool:
        """True while the resilient function runs, or was left by an exception of the script: no order is awaited."""
        return self._machine.state in (WorkerState.TRAINING, WorkerState.INTERRUPTED)

    def attach(self, breaker: Breaker) -> None:
        """Use this breaker from now on."""
        with self._changed:
            self._breaker = breaker
            if self._broken:
                breaker.break_collectives()

    def enter(self, step: int, condition: Condition) -> None:
        """Report that the resilient function is about to be called, or that the wait for a plan begins (`inside`)."""
        if self.inside:
            self.last_words("", "")  # the script has caught the exception that left it
        self._feed(Input(WorkerEvent.ENTER, step=step, condition=condition))

    def raised(self, step: int, condition: Condition, cause: str) -> None:
        """Report that the main thread came out of the resilient function, or out of a world that could not be built."""
        self._feed(Input(WorkerEvent.RAISED, step=step, condition=condition, cause=cause))

    def last_words(self, cause: str, kind: str) -> None:
        """Report an exception that leaves the resilient function upwards: nobody recovers this process."""
        self._send(SelfReport(cause=cause, kind=kind))

    def refuse(self, *, no_rebuild: str = "", no_newcomer: str = "", anew: str = "") -> None:
        """Declare beforehand why this process cannot be recovered in place.

        At a fault all processes then start anew instead.

        Args:
            no_rebuild: why no world can be rebuilt with it, even if every process lives.
            no_newcomer: why no new process can take the place of a lost one.
            anew: why all processes are to start anew at once, although nothing has failed; that costs no restart.

        The newest call counts; an empty reason takes the former one back.
        """
        self._send(Refuses(no_rebuild=no_rebuild, no_newcomer=no_newcomer, anew=anew))

    def recorded_setup(self, digest: str) -> None:
        """Report that the results of the set-up's collectives are in a file of this digest."""
        self._send(SetupRecorded(digest=digest))

    def saw_non_finite(self, step: int, value: str) -> None:
        """Report that the loss of this step is NaN or infinite, the first of its streak."""
        self._send(SawNonFinite(step=step, what="loss", value=value))

    def waits_for(self, lock: LockSeen | None) -> None:
        """Record that the main thread waits until this lock file is gone; None if it no longer waits.

        Raises `Interrupted` if the resilient function must be left.
        """
        self._lock_seen = lock
        if lock is not None and self._breaker is not None:
            self._breaker.leave_wait()

    def joined(self, step: int, condition: Condition) -> None:
        """Report that the groups of the new world are formed."""
        self._feed(Input(WorkerEvent.JOINED, step=step, condition=condition))

    def restored(self, step: int) -> None:
        """Report that the state is that of the target step."""
        self._feed(Input(WorkerEvent.RESTORED, step=step, condition=Condition.CLEAN))

    def dumped(self, step: int) -> None:
        """Report that the state of the target step is in a checkpoint."""
        self._feed(Input(WorkerEvent.DUMPED, step=step, condition=Condition.CLEAN))

    def returned(self, step: int, condition: Condition) -> None:
        """Report that the resilient function has returned."""
        self._feed(Input(WorkerEvent.RETURNED, step=step, condition=condition))

    def committed(self, step: int) -> bool:
        """Record a committed step and return `interrupted`. Call it for the first of a world and for one in a pause."""
        if self._machine.first_commit:
            self._feed(Input(WorkerEvent.COMMITTED, step=step, condition=Condition.CLEAN))
        return self.interrupted

    def tell_again(self) -> None:
        """Report the newest stage again, because this rank's holdings have changed while it trains."""
        with self._changed:
            if self._reported is not None and self._machine.state is WorkerState.TRAINING:
                self._report(self._reported)

    def await_order(self) -> WorldPlan | None:
        """Wait for the plan of the next world; None means that every rank has finished.

        Raises:
            AbandonedError: no recovery will come.

        """
        with self._changed:
            while not self._orders:
                self._changed.wait()
            order = self._orders.pop(0)
        if isinstance(order, AbandonedError):
            raise order
        return order

    # ---- the control thread's side

    def _hear(self, frame: bytes) -> None:
        try:
            self._obey(decode_to_local(frame))
        except WireError as error:
            logger.error("refused a message of the agent: %s", error)

    def _hung_up(self) -> None:
        if not _alive(self.config.agent_pid):
            _end_group()
        self._feed(Input(WorkerEvent.DESERTED, cause="the agent of this node has ended"))

    def _obey(self, message: ToLocal) -> None:
        match message:
            case Pause():
                at_commit = message.at_commit
                self._feed(Input(WorkerEvent.PAUSE, message.generation, cause=message.reason, at_commit=at_commit))
            case Join():
                self._feed(Input(WorkerEvent.JOIN, plan=message.plan))
            case Release():
                self._feed(Input(WorkerEvent.RELEASE, message.generation, sequence=message.sequence))
            case Abandon():
                self._feed(Input(WorkerEvent.ABANDON, cause=message.reason))
            case PeersKey():
                self.peers_key = message.key
            case AccountRequest():
                self._send(self._account(message.number))
            case Modules():
                self._send(Modules(names=self._modules()))
            case _:
                logger.error("the agent sent %s to a worker; it is ignored", type(message).__name__)

    def _account(self, number: int) -> Account:
        standing, breaker = _STANDINGS[self._machine.state], self._breaker
        if breaker is not None:
            standing = breaker.standing(main_stack(), standing)
        return Account(number=number, standing=standing.value, threads=all_stacks(), lock=self._lock_seen)

    # ---- both

    def _feed(self, given: Input) -> None:
        with self._changed:
            for action in self._machine.feed(given):
                match action:
                    case Report():
                        self._report(action)
                    case Break.BREAK:
                        self._set_broken(True)
                    case Break.MEND:
                        self._set_broken(False)
                    case Wake():
                        self._orders.append(action.plan)
                    case GiveUp():
                        self._orders.append(AbandonedError(action.reason))
            if self.interrupted and self._breaker is not None:
                self._breaker.leave_at_commit()
            self._changed.notify_all()

    def _set_broken(self, broken: bool) -> None:
        self._broken = broken
        if self._breaker is not None:
            (self._breaker.break_collectives if broken else self._breaker.mend)()

    def _report(self, report: Report) -> None:
        if report.stage is Stage.PAUSED:
            self._orders.clear()  # an order of the world that has just failed
        self._reported = report
        held = self.holding(report.stage is Stage.PAUSED)
        self._send(
            WorkerReport(
                generation=report.generation,
                stage=report.stage,
                step=report.step,
                condition=report.condition,
                cause=report.cause,
                at_s=time.monotonic(),
                **{name: getattr(held, name) for name in held.__struct_fields__},
            )
        )

    def _send(self, message: FromLocal) -> None:
        try:
            self._line.send(encode(message))
        except (OSError, LinkError):
            logger.debug("the agent's socket is gone", exc_info=True)
        except WireError as error:
            logger.error("nothing was sent to the agent: %s", error)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    known = stat(pid)
    return known is None or known.alive  # one that is being taken down has closed its sockets already


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


_link: WorkerLink | None = None


def start_from_environment(modules: Callable[[], tuple[str, ...]]) -> WorkerLink | None:
    """Link this process to its agent; None if no agent started it. `modules` names the installed modules in use.

    Raises:
        ConfigError: the agent's variables contradict each other.
        LinkError: the agent does not listen.
    """
    config = WorkerConfig.from_environment()
    return None if config is None else start(config, modules)


def start(config: WorkerConfig, modules: Callable[[], tuple[str, ...]], connect: Connect | None = None) -> WorkerLink:
    """Link this process to the agent of `config`. `connect` is used in place of its socket's path.

    Raises:
        LinkError: the agent cannot be reached.
    """
    global _link  # noqa: PLW0603 - one link per process
    _link = WorkerLink(config, modules, connect)
    return _link


def allows_inexact() -> bool:
    """Return whether the user wants recoveries in place even where they are not exact (`TASKD_INEXACT=allow`)."""
    link = current()
    return link is not None and link.config.allows_inexact


def current() -> WorkerLink | None:
    """Return the link of this very process; None without an agent, and in forked children."""
    return _link if _link is not None and _link.pid == os.getpid() else None
