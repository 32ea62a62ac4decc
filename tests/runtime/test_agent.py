"""The agent's loop between a scripted manager and a host of real processes that are no torchrun."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.config.agent import AgentConfig
from taskd.core.diagnosis.evidence import Ending, Evidence, RunState
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.ports import NodeIdentity
from taskd.runtime.links.links import ManagerSocket, Peer
from taskd.runtime.links.loopback import secured
from taskd.runtime.manager.journal import Journal
from taskd.wire import messages
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from taskd.wire.messages import Directive, NodeStatus, Order, RankOrder, Refusal, Stage
from tests.runtime.host import Host
from tests.wire.peers import NONE

LIMIT_S = 20.0
STORE = Rendezvous("127.0.0.1", 1)
IDENTITY = NodeIdentity(NodeRank(0), 1, (JobRank(0), JobRank(1)), None, 5)


class ScriptedManager:
    """Hears an agent, and says what the test says."""

    def __init__(self, socket: ManagerSocket) -> None:
        self.socket = socket
        self.heard: list[NodeStatus] = []
        self.evidence_reports: list[messages.EvidenceReport] = []
        self.received: list[NodeStatus | messages.EvidenceReport] = []
        self.modules: list[messages.Modules] = []
        self.sequence = 0
        self.records = ""
        self._peer: Peer | None = None

    def until(self, wanted: Callable[[NodeStatus], bool]) -> NodeStatus:
        """The next report for which `wanted` holds."""
        end_s = time.monotonic() + LIMIT_S
        while not (self.heard and wanted(self.heard[-1])):
            assert time.monotonic() < end_s, self.heard[-1:]
            self.listen(0.05)
        return self.heard[-1]

    def listen(self, length_s: float) -> None:
        """Take in what comes."""
        if self.socket.poll(length_s):
            for peer, status in self.socket.receive():
                self._peer = peer
                if isinstance(status, messages.Modules):
                    self.modules.append(status)
                    continue
                assert isinstance(status, NodeStatus | messages.EvidenceReport)
                self.received.append(status)
                if isinstance(status, messages.EvidenceReport):
                    self.evidence_reports.append(status)
                    continue
                self.heard.append(status)

    def evidence_report(self, *, asked: bool) -> dict[int, Evidence]:
        """The next evidence_report, of this sort."""
        end_s = time.monotonic() + LIMIT_S
        while not self.evidence_reports:
            assert time.monotonic() < end_s
            self.listen(0.05)
        told = self.evidence_reports.pop(0)
        assert bool(told.probe) is asked
        return {rank: msgspec.msgpack.decode(raw, type=Evidence) for rank, raw in told.evidence.items()}

    def say(
        self,
        order: Order,
        generation: int,
        *incarnations: int,
        reason: str = "",
        exit_code: int = 0,
        probe: int = 0,
    ) -> None:
        """Direct the agent; `incarnations` of ranks 0 and 1."""
        assert self._peer is not None
        self.sequence += 1
        ranks = tuple(RankOrder(rank=JobRank(rank), incarnation=number) for rank, number in enumerate(incarnations))
        directive = Directive(
            job_id="default",
            sequence=self.sequence,
            generation=generation,
            order=order,
            ranks=ranks,
            reason=reason,
            exit_code=exit_code,
            probe=probe,
            records=self.records,
        )
        assert self.socket.send(self._peer, directive)

    def refuse(self, reason: str) -> None:
        assert self._peer is not None
        assert self.socket.send(self._peer, Refusal(reason=reason))


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture
def manager(run_dir: Path) -> Iterator[ScriptedManager]:
    listen = Address(LOOPBACK, 0)
    with ManagerSocket(listen, secured(NONE, listen, run_dir)) as socket:
        yield ScriptedManager(socket)


@pytest.fixture
def make(run_dir: Path, manager: ScriptedManager) -> Iterator[Callable[..., NodeAgent]]:
    made: list[NodeAgent] = []

    def agent(**settings: str) -> NodeAgent:
        env = {
            "TASKD_MANAGER": str(manager.socket.address),
            "TASKD_RUN_DIR": str(run_dir),
            "TASKD_STANDBY": "0",
            "TASKD_HEARTBEAT_S": "60",
            **settings,
        }
        made.append(NodeAgent(AgentConfig.from_environment(env), lambda: STORE))
        for local_rank in Host.local_ranks:
            made[-1].worker_environment(local_rank)
        return made[-1]

    yield agent
    for one in made:
        one.stopping()
        one.stop()


@pytest.fixture
def agent(make: Callable[..., NodeAgent], host: Host) -> NodeAgent:
    made = make(TASKD_HEARTBEAT_S="0.5")
    made.started(host, IDENTITY)
    return made


def stages(status: NodeStatus) -> list[Stage]:
    return [rank.stage for rank in status.ranks]


def test_an_answer_is_no_reason_to_report(make: Callable[..., NodeAgent], host: Host, manager: ScriptedManager) -> None:
    """Or the two would talk without end: it reports at its heartbeats and when something has changed."""
    make(TASKD_HEARTBEAT_S="0.5").started(host, IDENTITY)
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    heard, began_s = len(manager.heard), time.monotonic()
    while time.monotonic() < began_s + 2:
        manager.listen(0.05)
        while len(manager.heard) > heard:
            heard += 1
            manager.say(Order.RUN, 0, 0, 0)
    assert heard <= 4 + (time.monotonic() - began_s) / 0.5, "about four heartbeats in two seconds"


def test_a_death_is_told_and_a_successor_started(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    dead = manager.until(lambda status: stages(status) == [Stage.STARTING, Stage.DEAD])
    assert dead.ranks[1].cause == "signal 9 (SIGKILL)"
    manager.say(Order.PAUSE, 1, 0, 1)
    new = manager.until(lambda status: status.ranks[1].incarnation == 1)
    assert (new.ranks[1].pid, new.ranks[1].stage, new.generation) == (host.pid(LocalRank(1)), Stage.STARTING, 1)
    assert host.calls == ["spawn 1 1 1"]


def test_the_box_of_the_dead_is_kept_where_the_manager_says(
    agent: NodeAgent, host: Host, manager: ScriptedManager, run_dir: Path
) -> None:
    """Another job of this name runs here too, and has the first folder."""
    with closing(Journal(run_dir, "default")), closing(Journal(run_dir, "default")) as journal:
        manager.records = journal.mark
        manager.until(lambda status: True)
        manager.say(Order.RUN, 0, 0, 0)
        manager.until(lambda status: status.heard == 1)
        host.processes[1].kill()
        manager.until(lambda status: stages(status) == [Stage.STARTING, Stage.DEAD])
        assert [str(box.relative_to(run_dir)) for box in run_dir.glob("*/boxes/*")] == [
            "default.2/boxes/rank-1-incarnation-0.box"
        ]


def test_a_living_process_is_fenced_before_it_is_replaced(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.ranks[0].incarnation == 1)
    assert host.old[0].wait(LIMIT_S) == -signal.SIGKILL


def test_the_evidence_of_a_death_is_sent_unasked_and_one_that_was_ordered_is_not(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.ranks[0].incarnation == 1)
    pid = host.pid(LocalRank(1))
    host.processes[1].kill()
    found = manager.evidence_report(asked=False)
    assert list(found) == [1]
    assert found[1].node == 0
    assert found[1].process is not None
    assert found[1].process.pid == pid
    ending = found[1].end.ending
    assert ending is not None
    assert (ending.status, ending.signum, ending.fenced) == (None, signal.SIGKILL, False)
    assert isinstance(ending, Ending)


def test_the_evidence_of_a_death_is_sent_behind_the_report_of_it(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    manager.evidence_report(asked=False)
    first, *_ = (
        message
        for message in manager.received
        if isinstance(message, messages.EvidenceReport) or message.ranks[1].stage is Stage.DEAD
    )
    assert isinstance(first, NodeStatus)


def test_the_evidence_of_a_death_is_sent_when_the_manager_knows_whose_rank_it_was(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    """Before its first order it may not have heard of this agent: a report can be lost, evidence get through."""
    manager.until(lambda status: True)
    host.processes[1].kill()
    manager.until(lambda status: status.ranks[1].stage is Stage.DEAD)
    agent.stopping()
    manager.until(lambda status: status.leaving)
    assert manager.evidence_reports == []
    manager.say(Order.RUN, 0, 0, 0)
    assert list(manager.evidence_report(asked=False)) == [1]


def test_a_question_is_answered_once_with_what_is_known_of_all_that_live(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    host.processes[1].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, host.pid(LocalRank(1)), os.WSTOPPED | os.WNOWAIT)
    for _ in range(3):
        manager.say(Order.RUN, 0, 0, 0, probe=7)
    found = manager.evidence_report(asked=True)
    manager.say(Order.RUN, 0, 0, 0, probe=8)
    assert manager.evidence_report(asked=True).keys() == found.keys() == {0, 1}
    assert found[1].process is not None
    assert found[1].process.state is RunState.STOPPED
    count = len(manager.heard)
    manager.until(lambda status: len(manager.heard) > count + 1)
    assert manager.evidence_reports == []


def test_the_generation_is_that_of_the_newest_order(agent: NodeAgent, manager: ScriptedManager) -> None:
    """Also where no process was started for it, as in a retry: a new manager must not begin with an older one."""
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 7, 0, 0)
    manager.until(lambda status: status.generation == 7)


def test_nobody_answers_then_somebody_does(
    make: Callable[..., NodeAgent], host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(TASKD_MANAGER_WAIT_S="0.5", TASKD_HEARTBEAT_S="0.1")
    made.started(host, IDENTITY)
    end_s = time.monotonic() + LIMIT_S
    while "stock" not in host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    while "manage" not in host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
        manager.say(Order.RUN, 0, 0, 0)
    assert host.calls[:2] == ["stock", "manage"]
    assert "for 0.5 s: torchrun's own behaviour takes over" in caplog.text


def test_a_refusal_is_said_once(
    agent: NodeAgent, host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.until(lambda status: True)
    for _ in range(3):
        count = len(manager.heard)
        manager.refuse("found job 'a', expected 'b'")
        manager.until(lambda status, seen=count: len(manager.heard) > seen)  # type: ignore[misc]
    assert host.calls == ["stock"]
    assert caplog.text.count("the manager refuses this node: found job 'a', expected 'b'") == 1


def test_the_job_is_given_up(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    manager.say(Order.STOP, 0, 0, 0, reason="the budget is spent", exit_code=1)
    end_s = time.monotonic() + LIMIT_S
    while not host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
    assert host.calls == ["give up: the budget is spent"]


def test_a_process_that_torchrun_does_not_let_start_is_no_failure_of_ours(
    agent: NodeAgent, host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.until(lambda status: True)
    host.ends = True
    host.processes[0].kill()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    manager.say(Order.RUN, 1, 1, 0)
    assert all(manager.until(lambda status: status.generation == 1) for _ in range(2))
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == []


def test_leaving_is_told_and_nothing_started_any_more(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    agent.stopping()
    assert manager.until(lambda status: status.leaving).leaving
    host.processes[0].kill()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.generation == 1)
    agent.stop()
    agent.stop()
    assert not any(call.startswith("spawn") for call in host.calls)


def test_a_rank_that_torchrun_ends_has_not_failed(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    """Only the one that died before says something of the fault."""
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    manager.until(lambda status: status.ranks[1].stage is Stage.DEAD)
    agent.stopping()
    host.processes[0].terminate()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    agent.stop()
    manager.listen(0.0)
    told = [rank for evidence_report in manager.evidence_reports for rank in evidence_report.evidence]
    assert told == [1]


def test_an_embedded_manager_serves_its_agent(run_dir: Path, host: Host) -> None:
    """With nothing configured the agent has a manager of its own, which recovers."""
    agent = NodeAgent(
        AgentConfig.from_environment({"TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"}),
        lambda: STORE,
    )
    for local_rank in Host.local_ranks:
        agent.worker_environment(local_rank)
    agent.started(host, IDENTITY)
    journal = run_dir / "default" / "journal.jsonl"
    end_s = time.monotonic() + LIMIT_S
    killed = False
    while not (killed and b'"recovered"' in journal.read_bytes()):
        assert time.monotonic() < end_s
        if not killed and journal.exists() and b'"run"' in journal.read_bytes():
            host.processes[0].kill()
            killed = True
        threading.Event().wait(0.02)
    assert host.calls == ["spawn 0 1 1", "spawn 1 1 1"]
    agent.stopping()
    agent.stop()


def test_its_directory_is_gone_in_the_end(run_dir: Path, host: Host) -> None:
    agent = NodeAgent(
        AgentConfig.from_environment({"TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"}), lambda: STORE
    )
    variables = msgspec.convert(agent.worker_environment(LocalRank(0)), dict[str, str])
    folder = Path(variables["TASKD_BLACKBOX"]).parent
    assert folder.exists()
    agent.stop()
    assert not folder.exists()
