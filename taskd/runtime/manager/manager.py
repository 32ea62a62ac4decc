"""The manager of one job: it receives the agents' reports, queries the core, and publishes its directives.

Rules:

1. `taskd.core.recovery` decides. This loop gives it the time and the reports, and performs its actions.
2. Every report is answered with the newest directive. So a lost message costs one heartbeat.
3. It is never on the path of a training step: training continues while the manager is away.
4. When the job has ended, it serves until the agents have left, `LINGER_S` at most.
"""

import logging
import threading
import time
from math import ceil

import msgspec
import zmq
from typing_extensions import assert_never

from taskd.config.address import Address
from taskd.config.manager import ManagerConfig
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.membership.shorthand import answer, is_short
from taskd.core.recovery import (
    Action,
    AskCluster,
    AskKernel,
    Diagnosed,
    JobEnded,
    Note,
    Publish,
    Recovered,
    Recovery,
    Setback,
    Superseded,
)
from taskd.core.recovery.deadlines import is_calm
from taskd.errors import TransitionError
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import Context, ManagerSocket, Peer
from taskd.runtime.links.loopback import secured
from taskd.runtime.manager.checks import NodeChecks
from taskd.runtime.manager.cluster import Cluster, cluster_of
from taskd.runtime.manager.crowd import Peers, own_evidence, unfit
from taskd.runtime.manager.journal import Journal, as_fields, as_text, at_step, most_bytes
from taskd.runtime.manager.kernels import Kernels
from taskd.runtime.manager.known_modules import KnownModules
from taskd.runtime.manager.node_journal import NodeJournal
from taskd.wire.checks import Inspect
from taskd.wire.messages import Answer, Directive, Drain, EvidenceReport, FromAgent, Modules, NodeStatus, Refusal
from taskd.wire.text import line

logger = logging.getLogger(__name__)
LINGER_S = 10.0
DESERTED_S = 2.0
TICK_MS, QUICK_TICK_MS = 100, 20
CALM_TICK_MS = 1000
"""Tick of an embedded manager, which loses no agent. A hang is still probed at its time."""
RESTART_S, MOST_RESTART_S = 0.1, 5.0
"""Wait of a failed manager before it begins anew: a time for each failure so far, and the longest wait."""
MOST_FAILURES = 3  # an embedded manager's limit: then its agent leaves the job to torchrun for good
_evidence = msgspec.msgpack.Decoder(Evidence)


class Manager:
    """Server of one job: `run` in the caller's thread, or `start` and `stop` for a thread of its own."""

    def __init__(
        self,
        config: ManagerConfig,
        cluster: Cluster | None = None,
        *,
        embedded: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Listen. `cluster` receives requests for nodes, in place of the configured command.

        A manager that is `embedded` in an agent leaves the report of the job's end to the agent. `stop`, once it is
        set, ends `run` as the method does.

        Raises:
            SecretError: the address needs a secret.
            LinkError: the address cannot be bound.

        """
        self._config = config
        self._embedded = embedded
        self._socket = ManagerSocket(config.listen, secured(config.security, config.listen, config.run_dir))
        most = most_bytes(config.policy.node_count * config.policy.ranks_per_node)
        self._journal = Journal(config.run_dir, config.job_id, most=most)
        self._cluster = cluster or cluster_of(config.node_command, config.job_id)
        self._kernels = Kernels()
        self._modules = KnownModules()
        self._node_journal = NodeJournal(self._journal)
        self._failed = 0
        self._told: set[str] = set()
        self._deserted = ""  # why the job is left to torchrun
        self._begin(0)
        self._stop = stop or threading.Event()
        self._thread: threading.Thread | None = None
        self.exit_code = 0

    def _begin(self, last: int) -> None:
        """Begin without any state of the job: its agents report it. `last`: the former manager's last directive."""
        # Its directives must count as newer than those of every manager that this job had before.
        self._core = Recovery(self._config.policy, sequence=max(time.time_ns() // 1_000_000, last + 1))
        self._node_checks = NodeChecks(
            self._config.policy, self._core.job.orders.sequence, self._journal, self._cluster
        )
        self._peers = Peers(self._config.policy.node_count)
        self._directive: Directive | None = None
        self._ended_s: float | None = None

    @property
    def address(self) -> Address:
        """Address at which it listens."""
        return self._socket.address

    @property
    def context(self) -> Context:
        """ZeroMQ context, for the agent in this process."""
        return self._socket.context

    @property
    def mark(self) -> str:
        """Mark of the folder of the job's records."""
        return self._journal.mark

    def run(self) -> int:
        """Serve until the job has ended or `stop` is called, and return the job's exit code."""
        self._journal.write("manager started", job_id=self._config.job_id, address=str(self.address))
        try:
            while not self._stop.is_set() and not self._over():
                self._serve()
        finally:
            self._socket.close(flush_s=0.2)
            self._kernels.close()
            if self._socket.refused:
                self._journal.write("refused", counts=dict(self._socket.refused))
            self._journal.close()
        return self.exit_code

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in self._socket.sockets:
            poller.register(socket, zmq.POLLIN)
        try:
            while not self._stop.is_set() and not self._over():
                poller.poll(self._pause_ms())
                self._turn()
        except Exception:
            self._failed += 1
            logger.exception("the manager has failed by a bug in taskd (please report this), and begins anew")
            self._journal.write("manager failed", count=self._failed)
            self._stop.wait(min(RESTART_S * self._failed, MOST_RESTART_S))
            self._begin(self._core.job.orders.sequence)

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="taskd-manager", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End `run`, and wait for the thread that `start` made."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _over(self) -> bool:
        if self._ended_s is None:
            return self._core.superseded or (self._embedded and self._failed >= MOST_FAILURES)
        left = all(node.status.leaving for node in self._core.world.nodes.views())
        return left or time.monotonic() - self._ended_s > (DESERTED_S if self._deserted else LINGER_S)

    def _pause_ms(self) -> int:
        if self._kernels.pending:
            return QUICK_TICK_MS
        due_s = self._core.watch.ask_s  # a hang is to be found at once
        tick_ms = CALM_TICK_MS if self._embedded and is_calm(self._core.state, self._core.job) else TICK_MS
        return tick_ms if due_s is None else max(1, min(tick_ms, ceil((due_s - time.monotonic()) * 1000)))

    def _turn(self) -> None:
        for peer, message in self._socket.receive():
            self._take(peer, message)
        for agent_id, listening in self._kernels.answers():
            self._perform(self._core.answered(agent_id, listening=listening, now_s=time.monotonic()))
        self._perform(self._core.tick(time.monotonic()))
        if self._node_checks.turn(self._core):
            for view in self._core.world.nodes.views():
                self._order_check(view.status)

    def _take(self, peer: Peer, message: FromAgent) -> None:
        """Handle one message. An error costs only that message."""
        try:
            self._obey(peer, message)
        except Exception as error:  # noqa: BLE001  a bug, whatever it raises
            self._tell_bug(f"a {type(message).__name__} was ignored", error)

    def _tell_bug(self, what: str, error: Exception) -> None:
        """Log a bug with its trace, once for each kind: the same error may come again with every report."""
        kind = f"{what}: {type(error).__name__}"
        if kind not in self._told:
            self._told.add(kind)
            logger.error("%s by a bug in taskd (please report this; further ones are not logged)", what, exc_info=error)

    def _obey(self, peer: Peer, message: FromAgent) -> None:
        if isinstance(message, NodeStatus | EvidenceReport) and message.agent_id != agent_of(message.proof):
            reason = "it speaks for another agent, expected one's own; install the same taskd on every node"
            self._socket.refuse("identity", f"a {type(message).__name__}", reason)
            return
        match message:
            case Drain():
                self._drain(peer, message)
            case Modules():
                self._learn(peer, message.names)
            case NodeStatus():
                self._hear(peer, message)
            case EvidenceReport():
                self._hear_evidence(message)
            case Inspect():
                self._socket.send(peer, self._node_checks.inspect(message, self._core))
            case _:
                assert_never(message)

    def _order_check(self, status: NodeStatus) -> None:
        order, peer = self._node_checks.order_for(status), self._peers.get(status.agent_id)
        if order is not None and peer is not None:
            self._socket.send(peer, order)

    def _hear_evidence(self, message: EvidenceReport) -> None:
        if message.job_id != self._config.job_id:
            return
        own, wrong = own_evidence(message, self._core)
        try:
            evidence = {rank: _evidence.decode(raw) for rank, raw in (own or {}).items()}
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            own, wrong = None, f"agent {message.agent_id} sends evidence that cannot be read: {line(str(error))}"
        if wrong:
            self._socket.refuse("evidence", "an evidence report", wrong)
        if own is None:
            return
        self._perform(self._core.hear_evidence(message.agent_id, message.probe, evidence, time.monotonic()))

    def _learn(self, peer: Peer, names: tuple[str, ...]) -> None:
        """Record the ranks' imports, for the warm processes of nodes that have no rank to learn them from."""
        if all(self._peers.get(agent_id) != peer for agent_id in self._core.world.nodes.holders.values()):
            self._socket.refuse(
                "modules", "names of modules", "a peer without a place in the job, expected a node of it"
            )
            return
        if not self._modules.learn(names):
            return
        for agent_id in self._core.world.nodes.candidates:
            self._teach(agent_id)

    def _teach(self, agent_id: str) -> None:
        peer, message = self._peers.get(agent_id), self._modules.message()
        if peer is not None and message is not None:
            self._socket.send(peer, message)

    def _drain(self, peer: Peer, message: Drain) -> None:
        if message.job_id != self._config.job_id:
            refusal = f"found job {message.job_id!r}, expected {self._config.job_id!r}; set TASKD_JOB_ID"
        else:
            refusal, actions = self._core.move_from(message.node, time.monotonic())
            self._perform(actions)
        text = refusal or f"the ranks of node {message.node} move to another node"
        self._socket.send(peer, Answer(granted=not refusal, text=text))

    def _hear(self, peer: Peer, status: NodeStatus) -> None:
        refusal = self._deserted or unfit(status, self._core)
        holds = status.node_rank == self._core.world.nodes.place_of(status.agent_id)
        if refusal is None and status.deserted and holds:
            refusal = f"the agent of node {status.node_rank} has ended by an error, which its own log names"
            self._deserted, self._ended_s = refusal, time.monotonic()
            if not self._embedded:
                logger.error("%s: the job goes on without taskd", refusal)
        if refusal is not None:
            self._socket.send(peer, Refusal(reason=refusal))
            return
        crowded = self._peers.crowded_out(status, self._core)
        if crowded:
            self._socket.refuse("crowd", "a report", crowded)
            return
        self._peers.put(status.agent_id, peer, self._core)
        before = self._directive
        try:
            actions = self._core.hear(status, time.monotonic())
            self._note(status)
            self._perform(actions)
        except TransitionError as error:
            self._tell_bug(f"a part of the report of node {status.node_rank} was ignored", error)
        if self._core.superseded:
            return
        self._node_journal.note_first_step(self._core.world)
        if status.node_rank < 0:
            self._await_place(status)
        if self._directive is before and before is not None:
            self._socket.send(peer, answer(status, before))
        self._node_checks.hear(status)
        self._order_check(status)

    def _note(self, status: NodeStatus) -> None:
        """Write the changes in a node's report to the journal, if the node holds the place that it names."""
        holds = status.node_rank >= 0 and self._core.world.nodes.place_of(status.agent_id) == status.node_rank
        if holds and not self._core.superseded and not is_short(status, self._core.term):
            self._node_journal.note(status)

    def _await_place(self, status: NodeStatus) -> None:
        """Write to the journal, once, that a node waits for a place."""
        if status.agent_id not in self._peers.waiting and not is_short(status, self._core.term):
            self._peers.waiting.add(status.agent_id)
            self._teach(status.agent_id)
            self._journal.write("node waits", agent_id=status.agent_id, host=status.host, wants=status.wants)

    def _perform(self, actions: list[Action]) -> None:
        before, actions = self._directive, [] if self._deserted else actions
        self._perform_each(actions)
        if self._directive is not None and self._directive is not before:  # only the newest of several counts
            self._socket.send_all(self._peers.values(), self._directive)

    def _perform_each(self, actions: list[Action]) -> None:
        for action in actions:
            self._perform_safely(action)

    def _perform_safely(self, action: Action) -> None:
        """Perform one action. An error costs only that action, and no later one."""
        try:
            self._perform_one(action)
        except Exception as error:  # noqa: BLE001  a bug, whatever it raises
            self._tell_bug(f"{type(action).__name__} was not done", error)

    def _perform_one(self, action: Action) -> None:
        match action:
            case Publish():
                self._publish(action.directive)
            case Recovered():
                fault = self._journal.fault(action.record.fault)
                logger.warning("%s", as_text(action.record, fault))
                self._journal.write("recovered", **as_fields(action.record, fault))
            case Setback():
                self._tell_setback(action)
            case JobEnded():
                self._end(action)
            case Diagnosed():
                self._journal.diagnosis(action)
                if action.reported:
                    logger.warning(
                        "fault %d, %s: %s",
                        self._journal.fault(action.fault),
                        at_step(action.step),
                        action.diagnosis.sentence,
                    )
            case AskKernel():
                self._kernels.ask(action.agent_id, action.host, action.port)
            case AskCluster():
                self._journal.write("node wanted", node_rank=action.node_rank, reason=action.reason)
                self._cluster.request(action.node_rank, action.reason)
            case Superseded():
                logger.error("the agents obey a newer manager: this one ends")
                self._journal.write("superseded", term=action.term)
                self.exit_code = 1
            case Note():
                logger.log(logging.WARNING if action.warns else logging.INFO, "%s", action.text)
            case _:
                assert_never(action)

    def _tell_setback(self, action: Setback) -> None:
        fault = self._journal.fault(action.record.fault)
        logger.warning("fault %d, %s", fault, action.text)
        self._journal.setback(action, fault)

    def _publish(self, directive: Directive) -> None:
        self._directive = msgspec.structs.replace(directive, records=self._journal.mark)
        self._journal.write(
            "directive",
            generation=directive.generation,
            order=directive.order.value,
            phase=self._core.phase.value,
            reason=directive.reason,
        )

    def _end(self, action: JobEnded) -> None:
        self._ended_s = time.monotonic()
        self.exit_code = action.exit_code
        if not self._embedded:
            logger.log(logging.ERROR if action.exit_code else logging.INFO, "the job has ended: %s", action.reason)
        record = action.record
        fault = as_fields(record, self._journal.fault(record.fault)) if record is not None else {}
        self._journal.write("stopped", reason=action.reason, exit_code=action.exit_code, fault=fault)
