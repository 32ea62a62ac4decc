"""The agent of one node: a thread inside torchrun that owns the node's processes and obeys the manager.

Rules:

1. `taskd.core.agent` decides on each process. This loop receives events, passes them on, and performs the actions.
2. One thread owns all state. torchrun's main thread only leaves notes in the inbox.
3. After `manager_wait_s` without an answer, torchrun takes over, with one warning, until the manager answers again.
4. However this thread ends, no rank waits for an order any more, and torchrun's own behaviour takes over (`_desert`).
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil, inf

import zmq
from typing_extensions import assert_never

from taskd.config.agent import AgentConfig
from taskd.core.agent import Action, Node, need_of
from taskd.core.membership.heartbeats import HELD_S, Heartbeats
from taskd.core.membership.plausible import strange
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.agent.embedded import connect
from taskd.runtime.agent.job_status import JobStatus
from taskd.runtime.agent.loop import AgentLoop
from taskd.runtime.agent.manager_timeout import ManagerTimeout
from taskd.runtime.agent.node_checker import NodeChecker
from taskd.runtime.agent.observer import Observer
from taskd.runtime.agent.ports import NodeIdentity, Outlook, Templates, WorkerHost
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.runtime.agent.statuses import Reports, Urgent
from taskd.runtime.agent.supervisor import WAITING, RankSupervisor
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
    SetupRecorded,
    Stage,
    WorkerReport,
)
from taskd.wire.standbys import Probed

logger = logging.getLogger(__name__)
ENDS = "torchrun ends its ranks"


class NodeAgent:
    """Implementation of `ports.NodeRuntime`. `serve_store` starts the store's server; `named`: see `RankFiles`."""

    pool, listens = StandbyPool, True

    def __init__(self, config: AgentConfig, serve_store: Callable[[], Rendezvous], *, named: bool = False) -> None:
        self._config = config
        self._serve_store = serve_store
        self._reports = Reports(config.job_id)
        self._node = Node(agent_id=agent_of(self._reports.proof))
        with ExitStack() as opened:
            self._files = RankFiles(config.run_dir, config.job_id, named=named)
            opened.callback(self._files.close)
            self._server = self._files.server(listens=self.listens)
            opened.callback(self._server.close)
            self._deaths = DeathWatch()
            opened.callback(self._deaths.close)
            self._loop = AgentLoop(self._serve, self._desert)
            opened.pop_all()
        # The lambda is needed: `_ranks` does not exist yet.
        self._pool = self.pool(self._server, config.standbys, lambda: self._ranks.start_template())  # noqa: PLW0108
        self._ranks = RankSupervisor(self._files, self._deaths, self._pool, config.preload)
        self._processes = self._ranks.processes
        self._observer = Observer(config.job_id, self._ranks, self._reports.proof)
        self._identity: NodeIdentity | None = None
        self._host: WorkerHost | None = None
        """Newest host, even if this thread has not taken it over yet."""
        self._link: AgentSocket | None = None
        self._manager: Manager | None = None
        self._closed = self._leaving = self._warned = False
        self._told: Urgent | None = None
        self._local_ranks, self._stock = 1, config.presumes_manager  # until one answers
        self._heartbeats, self._held_s, self._sent_s = Heartbeats(config.heartbeat_s), inf, 0.0
        self._job = JobStatus(config.manager_wait_s, presumed=config.presumes_manager)
        self._timeout = ManagerTimeout(config, self._job)
        self._warmup = WarmUp(self._pool, self._processes.any_peer, self._ranks.runs_python, learn=config.learn_modules)
        self._node_checker = NodeChecker(self._pool, self._deaths, config.run_dir)

    # ---- torchrun's side (main thread)

    def worker_environment(self, local_rank: LocalRank) -> dict[str, str]:
        """Return the variables of a process that torchrun itself is about to start."""
        return self._ranks.fresh_environment(local_rank, self._node.generation, self.places or 0)

    def started(self, host: WorkerHost, identity: NodeIdentity) -> None:
        """Take over the processes of this node, which all run."""
        self._host = host
        if self._loop.post(lambda: self._take_over(host, identity)):
            self._loop.begin()
        else:
            host.stock()

    def ask(self, wants: NodeRank, local_ranks: int, least: int, templates: Templates) -> None:
        """Announce this node to the manager."""
        self._reports.wants, self._reports.least, self._local_ranks = wants, least, local_ranks
        self._ranks.lend(templates)
        self._loop.post(self._come)
        self._loop.begin()

    @property
    def ended(self) -> bool:
        """True if the agent has ended by an error: processes that start now are torchrun's alone."""
        return self._loop.deserted

    @property
    def checks(self) -> bool:
        """True if this node is to be checked before it trains."""
        return self._config.node_check

    def await_check(self) -> str:
        """Wait for the node check; return why this node must leave the job, or ""."""
        return self._job.await_check() if self.checks else ""

    def outlook(self, timeout_s: float | None) -> Outlook:
        """Return the job's phase as this node finds it; see `JobStatus.outlook`."""
        return self._job.outlook(timeout_s)

    @property
    def places(self) -> int | None:
        """Number of places of the job, as the manager reports it."""
        return self._job.places

    def await_end(self, timeout_s: float) -> bool:
        """Wait for the job's end if its world is no longer the one that torchrun formed; return whether it was so."""
        if self._stock or (self._node.generation == 0 and not self._resized):
            return False
        self._job.await_end(timeout_s)
        return True

    @property
    def _resized(self) -> bool:
        return self._identity is None or self._identity.candidate or self._ranks.moved

    def stopping(self) -> None:
        """Stop all recovery, because torchrun is about to end the processes. Return when that is certain."""
        if not self._closed:
            self._loop.settle(self._rest)

    def _rest(self) -> None:
        self._leaving = True
        self._ranks.rest()
        self._ranks.release_waiting(self._node, ENDS)

    def stop(self, *, deserts: bool = False) -> None:
        """Close everything, after the processes have ended or were left to torchrun."""
        if self._closed:
            return
        self._loop.post(self._desert if deserts else self._rest)
        ends, self._closed = self._loop.finish(), True  # closed only then: a second signal may interrupt the wait
        if not ends:
            logger.error("the agent of this node does not end; torchrun ends without it (please report this)")
            return
        with ExitStack() as closing:  # in reverse order; each step runs even if another one fails
            closing.callback(self._loop.close)
            if self._link is not None:
                closing.callback(self._link.close, flush_s=0.2)  # the last word: this node leaves
            if self._manager is not None:
                closing.callback(self._manager.stop)
            for part in (self._deaths, self._files, self._server, self._pool):
                closing.callback(part.close)

    # ---- the loop (its own thread)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for part in (self._loop, self._server, self._deaths):
            poller.register(part.fileno(), zmq.POLLIN)
        while not self._loop.done:
            if poller.poll(self._pause_ms()) or self._link is None or not self._link.connected:
                self._receive(poller)
            self._advance()
        self._report()

    def _desert(self) -> None:
        """Leave the ranks to torchrun; each step runs even if another one fails."""
        self._stock = self._reports.deserted = self._files.deserted = True
        with ExitStack() as steps:  # in reverse order
            steps.callback(self._report)  # the other nodes' agents then leave their ranks, too
            if self._host is not None:
                steps.callback(self._host.stock)
            steps.callback(self._job.give_up)
            steps.callback(self._server.hang_up)
            steps.callback(self._ranks.starts.clear)

    def _pause_ms(self) -> int:
        due_s = min(self._heartbeats.due_s, self._held_s, self._observer.due_s or inf, self._node_checker.due_s)
        return max(0, ceil((due_s - time.monotonic()) * 1000))

    def _receive(self, poller: zmq.Poller) -> None:
        self._loop.work()
        endings = self._deaths.events()
        for peer, message in self._processes.in_time(self._server.receive()):  # first: they may explain an end
            self._hear_local(peer, message)
        for ending in endings:
            if not self._node_checker.ended(ending):
                self._perform_all(self._ranks.ended(self._node, ending))
        if self._link is not None:
            self._link.join(poller)
            for answer in () if self._reports.deserted else self._link.receive():
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
            self._link, self._manager = connect(self._config, self._local_ranks, self._files, self._loop.__len__)

    # ---- received messages

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
            case Account() | SawNonFinite() | SelfReport() | Refuses() | SetupRecorded():
                self._observer.hear(self._processes.rank_of(peer), message, self._node)
            case Modules():
                self._pool.import_modules(message.names)
                if self._link is not None:
                    self._link.send(message)  # spares import them too; a lost message only slows them
            case _:
                assert_never(message)

    def _hear_report(self, peer: Peer, report: WorkerReport) -> None:
        if (rank := self._processes.rank_of(peer)) is not None:
            self._perform_all(self._node.report(rank, report))
            if report.stage is Stage.COMMITTED:
                self._warmup.committed(peer)
        if report.stage in WAITING and (rank is None or self._stock or self._leaving):
            why = ENDS if self._leaving else "no manager answers"
            peer.send(Abandon(reason=why if rank is not None else "another process is this rank"))

    def _hear_manager(self, message: FromManager) -> None:
        self._timeout.renew()
        match message:
            case Refusal():
                self._go_stock(f"the manager refuses this node: {message.reason}")
            case Answer() | Inspection():
                logger.error("the manager sent an answer to no question of this agent; it is ignored")
            case Modules():
                self._pool.import_foreign(message.names)
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
        if self._stock and not self._leaving and not (self._warned and directive.order is Order.FORM):
            self._stock = False
            if self._warned:
                logger.warning("the manager answers: taskd recovers again")
            self._ranks.manage()
        if self._identity is None:
            return  # not ready for a place; the directive comes again
        self._ranks.follow(self._node, directive, elsewhere=self._manager is None)
        if directive.order is Order.RUN:
            self._pool.refill()
        self._perform_all(self._node.obey(directive))
        self._observer.answer_probe(self._node, directive.probe)

    def _watch_the_clock(self) -> None:
        if self._link is not None and not (self._leaving or self._node.stopped):  # then no manager is needed
            why = self._timeout.look(need_of(self._node), self._link.trouble, embedded=self._manager is not None)
            if why:
                self._go_stock(why)
        self._warmup.look(now_s := time.monotonic())
        self._ranks.starts.expire(self._node, now_s)
        self._node_checker.expire()

    def _leave(self, reason: str) -> None:
        """Leave the job: this node was found unfit, and none of its processes may train."""
        if not self._job.dismissed:
            logger.error("%s", reason)
            self._job.dismiss(reason)
            if self._identity is not None:
                self._ranks.give_up(reason)

    def _go_stock(self, reason: str) -> None:
        self._job.give_up()
        if self._identity is None:
            return  # torchrun has started nothing yet
        if self._node.place is None:
            self._ranks.give_up(f"{reason}, and this node holds no place")
        elif not self._stock:
            self._stock = self._warned = True
            logger.warning("%s: torchrun's own behaviour takes over; taskd keeps trying", reason)
            self._ranks.stock()
            self._ranks.release_waiting(self._node, reason)

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
        self._ranks.reap(self._node)
        if self._link is not None:
            seen = self._observer.look(self._node, in_haste=self._told.is_pressing(before))
            status = self._reports.compose(self._node, self._identity, urgent=self._told, seen=seen, sent_s=now_s)
            delivered = self._link.send(status)
        self._heartbeats.sent(now_s, delivered=delivered)
