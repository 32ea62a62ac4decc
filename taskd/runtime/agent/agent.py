"""The agent of one node: a thread inside torchrun that owns the node's processes and obeys the manager.

Rules:

1. `taskd.core.agent` decides what is done with each process; this loop receives, asks it, and performs.
2. One thread owns all state. torchrun's main thread only leaves notes in the inbox.
3. Without an answer of the manager for `manager_wait_s`, torchrun's own behaviour takes over, with one warning; when
   the manager answers again, taskd takes back.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import ceil, inf

import zmq
from typing_extensions import assert_never

from taskd.config.agent import AgentConfig
from taskd.core.agent import Action, Node
from taskd.core.membership.heartbeats import HELD_S, Heartbeats
from taskd.core.membership.plausible import strange
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.agent.embedded import connect
from taskd.runtime.agent.job_status import JobStatus
from taskd.runtime.agent.manager_timeout import ManagerTimeout
from taskd.runtime.agent.node_checker import NodeChecker
from taskd.runtime.agent.observer import Observer
from taskd.runtime.agent.ports import NodeIdentity, Outlook, Templates, WorkerHost
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.runtime.agent.statuses import Reports, Urgent
from taskd.runtime.agent.supervisor import RankSupervisor
from taskd.runtime.agent.warm_up import WarmUp
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.manager.manager import Manager
from taskd.wire.accounts import Account
from taskd.wire.checks import CheckOrder, Cleared, Dismissed, Inspection
from taskd.wire.kinds import LocalRank, NodeRank
from taskd.wire.messages import (
    Abandon,
    Answer,
    Directive,
    FromLocal,
    FromManager,
    Heard,
    Hello,
    Modules,
    Order,
    Refusal,
    Refuses,
    SawNonFinite,
    SelfReport,
    Stage,
    WorkerReport,
)
from taskd.wire.standbys import Probed

logger = logging.getLogger(__name__)


class NodeAgent:
    """Implements `taskd.runtime.agent.ports.NodeRuntime`. `serve_store` makes the node's store server."""

    pool = StandbyPool

    def __init__(self, config: AgentConfig, serve_store: Callable[[], Rendezvous]) -> None:
        self._config = config
        self._serve_store = serve_store
        self._reports = Reports(config.job_id)
        self._node = Node(agent_id=agent_of(self._reports.proof))
        self._files = RankFiles(config.run_dir, config.job_id)
        self._server = LocalServer(self._files.socket)
        self._deaths = DeathWatch()
        self._pool = self.pool(self._server, config.standbys, lambda: self._ranks.start_template())  # noqa: PLW0108  not yet there
        self._ranks = RankSupervisor(self._files, self._deaths, self._pool, config.preload)
        self._processes = self._ranks.processes
        self._observer = Observer(config.job_id, self._ranks, self._reports.proof)
        self._identity: NodeIdentity | None = None
        self._link: AgentSocket | None = None
        self._manager: Manager | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._done = self._closed = self._leaving = self._warned = False
        self._told: Urgent | None = None
        self._local_ranks, self._stock = 1, config.presumes_manager  # until one answers
        self._heartbeats, self._held_s, self._sent_s = Heartbeats(config.heartbeat_s), inf, 0.0
        self._timeout = ManagerTimeout(config.manager_wait_s)
        self._job = JobStatus(config.manager_wait_s, presumed=config.presumes_manager)
        self._warmup = WarmUp(self._pool, self._processes.any_peer, self._ranks.runs_python, learn=config.learn_modules)
        self._node_checker = NodeChecker(self._pool, self._deaths, config.run_dir)

    # ---- torchrun's side (main thread)

    def worker_environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Variables of a process that torchrun itself is about to start."""
        return self._ranks.fresh_environment(local_rank, self._node.generation, self.places or 0)

    def started(self, host: WorkerHost, identity: NodeIdentity) -> None:
        """All processes of this node run."""
        self._post(lambda: self._take_over(host, identity))
        self._begin()

    def ask(self, wants: NodeRank, local_ranks: int, least: int, templates: Templates) -> None:
        """Tell the manager that this node comes."""
        self._reports.wants, self._reports.least, self._local_ranks = wants, least, local_ranks
        self._ranks.lend(templates)
        self._post(self._come)
        self._begin()

    @property
    def checks(self) -> bool:
        """Whether this node is to be checked before it trains."""
        return self._config.node_check

    def await_check(self) -> str:
        """Wait until it was: why it must leave, or nothing."""
        return self._job.await_check() if self.checks else ""

    def outlook(self, timeout_s: float | None) -> Outlook:
        """What this node finds; see `JobStatus.outlook`."""
        return self._job.outlook(timeout_s)

    @property
    def places(self) -> int | None:
        """Places of the job, as the manager says."""
        return self._job.places

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the job has ended, if its world is no longer the one that torchrun has formed."""
        if self._stock or (self._node.generation == 0 and not self._resized):
            return False
        self._job.await_end(timeout_s)
        return True

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd-agent", daemon=True)
            self._thread.start()

    @property
    def _resized(self) -> bool:
        identity = self._identity
        return identity is None or identity.candidate or self._ranks.moved

    def stopping(self) -> None:
        """torchrun is about to end the processes: recover nothing any more. Returns when that is certain."""
        if self._closed:
            return
        quiet = threading.Event()

        def leave() -> None:
            self._leaving = True
            self._ranks.rest()
            quiet.set()

        self._post(leave)
        if self._thread is not None and self._thread.is_alive():
            quiet.wait(5.0)

    def stop(self) -> None:
        """The processes have ended: close everything."""
        if self._closed:
            return
        self._post(self._finish)
        if self._thread is not None:
            self._thread.join()
        self._closed = True
        self._pool.close()
        self._server.close()
        self._files.close()
        self._deaths.close()
        if self._manager is not None:
            self._manager.stop()
        if self._link is not None:
            self._link.close(flush_s=0.2)  # the last word: this node leaves
        os.close(self._wake)

    def _post(self, note: Callable[[], None]) -> None:
        self._inbox.append(note)
        os.eventfd_write(self._wake, 1)

    def _finish(self) -> None:
        self._leaving = self._done = True

    # ---- the loop (its own thread)

    def _run(self) -> None:
        poller = zmq.Poller()
        for fd in (self._wake, self._server.fileno(), self._deaths.fileno()):
            poller.register(fd, zmq.POLLIN)
        try:
            while not self._done:
                if poller.poll(self._pause_ms()) or self._link is None or not self._link.connected:
                    self._receive(poller)
                self._advance()
        except Exception:
            logger.exception("the agent of this node has failed; torchrun goes on without taskd (please report this)")
            self._ranks.stock()
        self._report()

    def _pause_ms(self) -> int:
        due_s = min(self._heartbeats.due_s, self._held_s, self._observer.due_s or inf, self._node_checker.due_s)
        return max(0, ceil((due_s - time.monotonic()) * 1000))

    def _receive(self, poller: zmq.Poller) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()
        endings = self._deaths.events()
        for peer, message in self._server.receive():  # what the dead have said explains their end
            self._hear_local(peer, message)
        for ending in endings:
            if not self._node_checker.ended(ending):
                self._perform_all(self._ranks.ended(self._node, ending))
        if self._link is not None:
            self._link.join(poller)
            for answer in self._link.receive():
                self._hear_manager(answer)

    def _advance(self) -> None:
        self._watch_the_clock()
        now_s, state = time.monotonic(), self._state()
        if state != self._told:
            self._held_s = now_s if state.is_pressing(self._told) else min(self._held_s, now_s + HELD_S)
        if self._beats(now_s) or now_s >= self._held_s:
            self._report()
        if self._link is not None and self._node.directive is not None:  # a manager that knows whose ranks they are
            for evidence in self._observer.evidence_reports(self._node, inf if self._leaving else now_s, self._sent_s):
                self._link.send(evidence)

    def _beats(self, now_s: float) -> bool:
        if now_s < self._heartbeats.due_s:
            return False
        calm = self._manager is not None and self._job.runs
        return self._heartbeats.beat(now_s, self._observer.newest_step(self._node) if calm else None)

    def _take_over(self, host: WorkerHost, identity: NodeIdentity) -> None:
        self._local_ranks, self._leaving = len(host.local_ranks), False
        if self._identity is None:
            self._open_link()
            self._timeout.renew()
        self._identity = identity
        if self._stock:
            host.stock()
        if identity.candidate:
            self._ranks.wait(host)
            self._pool.want(max(self._config.standbys, len(host.local_ranks)))
        else:
            self._node.place = identity.node_rank
            self._ranks.take(host, self._node)
        self._warmup.begin(beside_ranks=not identity.candidate)

    def _come(self) -> None:
        if self.checks:
            self._node_checker.ask_for(self._local_ranks, strict=self._config.exclude_straggler)
        self._open_link()

    def _open_link(self) -> None:
        if self._link is None:
            self._reports.store = self._serve_store()
            self._link, self._manager = connect(self._config, self._local_ranks, self._files, lambda: bool(self._inbox))

    # ---- what comes in

    def _hear_local(self, peer: Peer, message: FromLocal | None) -> None:
        match message:
            case None:
                self._pool.gone(peer)
                self._processes.gone(peer)
            case Hello(role="worker"):
                if self._processes.hello(peer, message, self._link.peers_key if self._link is not None else ""):
                    self._perform_all(self._node.connected(message.rank))
            case Hello():
                self._pool.hello(peer, message)
                self._ranks.starts.serve(self._node)
                self._node_checker.serve()
            case WorkerReport():
                self._hear_report(peer, message)
            case Probed():
                self._node_checker.hear(peer, message.result)
            case Account() | SawNonFinite() | SelfReport() | Refuses():
                self._observer.hear(self._processes.rank_of(peer), message, self._node)
            case Modules():
                self._pool.import_modules(message.names)
                if self._link is not None:
                    self._link.send(message)  # a spare imports them too; lost, that takes it longer
            case _:
                assert_never(message)

    def _hear_report(self, peer: Peer, report: WorkerReport) -> None:
        if (rank := self._processes.rank_of(peer)) is None:
            return
        self._perform_all(self._node.report(rank, report))
        if report.stage is Stage.COMMITTED:
            self._warmup.committed(peer)
        if self._stock and report.stage in (Stage.PAUSED, Stage.FINISHED):
            peer.send(Abandon(reason="no manager answers"))

    def _hear_manager(self, message: FromManager) -> None:
        self._timeout.renew()
        match message:
            case Refusal():
                self._go_stock(f"the manager refuses this node: {message.reason}")
            case Answer() | Inspection():
                logger.error("the manager sent an answer to no question of this agent; it is ignored")
            case Modules():
                self._pool.import_modules(message.names)
            case CheckOrder():
                self._node_checker.obey(message, self._local_ranks)
            case Cleared():
                self._node_checker.clear(message)
                self._pool.want(self._config.standbys)
                self._job.clear()
            case Dismissed():
                self._leave(message.reason)
            case Directive() | Heard():
                if (directive := self._reports.shorthand.hear(message)) is not None:
                    self._follow(directive)
            case _:
                assert_never(message)

    def _follow(self, directive: Directive) -> None:
        if (odd := strange(directive, self._local_ranks)) and self._link is not None:
            self._link.refuse("order", "a directive", odd)
            return
        self._job.learn(directive)
        if self._identity is None:
            return  # not ready for a place; it is told again
        if self._stock:
            self._stock = False
            if self._warned:
                logger.warning("the manager answers: taskd recovers again")
            self._ranks.manage()
        self._files.records = directive.records
        if directive.order is Order.RUN:
            self._pool.refill()
        self._perform_all(self._node.obey(directive))
        self._observer.answer_probe(self._node, directive.probe)

    def _watch_the_clock(self) -> None:
        now_s = time.monotonic()
        waited_s = self._timeout.spent_s(self._job.places or 1, ended=self._ranks.have_ended(self._node))
        if waited_s is not None and self._link is not None and (self._identity is not None or self.checks):
            where = self._link.trouble or f"no manager answers at {self._config.manager}"
            self._go_stock(f"{where} for {waited_s:g} s")
        self._warmup.look(now_s)
        self._ranks.starts.expire(self._node, now_s)
        self._node_checker.expire()

    def _leave(self, reason: str) -> None:
        """This node was found unfit: nothing of it may train."""
        if not self._job.dismissed:
            logger.error("%s", reason)
            self._job.dismiss(reason)
            if self._identity is not None:
                self._ranks.give_up(reason)

    def _go_stock(self, reason: str) -> None:
        if self._node.place is None and self._identity is not None:
            self._ranks.give_up(f"{reason}, and this node holds no place")
        elif not self._stock:
            self._stock = self._warned = True
            logger.warning("%s: torchrun's own behaviour takes over; taskd keeps trying", reason)
            self._ranks.stock()
        self._job.give_up()

    # ---- what goes out

    def _perform_all(self, actions: list[Action]) -> None:
        self._ranks.perform(self._node, actions, may_start=not self._leaving and not self._stock)

    def _state(self) -> Urgent:
        return Urgent(
            ranks=tuple(slot.status for slot in self._node.slots.values()),
            standbys=self._pool.count,
            generation=max(self._processes.generation, self._node.generation),
            leaving=self._leaving,
            knows=self._reports.shorthand.knows(self._node.directive),
            check=self._node_checker.state,
        )

    def _report(self) -> None:
        before, self._told, now_s, delivered = self._told, self._state(), time.monotonic(), False
        self._held_s, self._sent_s = inf, now_s
        self._ranks.reap()
        if self._link is not None:
            seen = self._observer.look(self._node, in_haste=self._told.is_pressing(before))
            status = self._reports.compose(self._node, self._identity, urgent=self._told, seen=seen, sent_s=now_s)
            delivered = self._link.send(status)
        self._heartbeats.sent(now_s, delivered=delivered)
