"""Well-typed but senseless reports, from a peer with the secret: each harms only its sender, and the job is served."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from taskd.config.manager import ManagerConfig
from taskd.core.diagnosis.evidence import Evidence, NonFinite, Process, RankPosition
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.manager.crowd import most_waiting
from taskd.runtime.manager.manager import Manager
from taskd.wire import codec, messages
from taskd.wire.checks import Inspect
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Drain, Ledger, Modules, NodeStatus, Order, Refusal, Stage
from tests.fuzz.shapes import Value, changed
from tests.runtime.test_manager import Agent, rank, security_of
from tests.wire.peers import LIMIT_S, until

Make = Callable[..., Manager]
STATUS = NodeStatus(
    job_id="job",
    node_rank=NodeRank(-1),
    agent_id=agent_of("a stranger's proof"),
    proof="a stranger's proof",
    sequence=1,
    node_count=1,
    ranks=(),
    store_host="127.0.0.1",
    store_port=1,
    standbys=0,
    max_restarts=0,
    generation=0,
)
MESSAGES = [
    STATUS,
    messages.EvidenceReport(job_id="job", agent_id=STATUS.agent_id, probe=0, evidence={}, proof=STATUS.proof),
    Drain(job_id="job", node="7"),
    Modules(names=("numpy",)),
    Inspect(job_id="other", key="key"),
]


class Stubborn:
    """Cluster that fails at a request."""

    def __init__(self) -> None:
        self.asked = 0

    def request(self, node_rank: int, reason: str) -> None:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError(f"no node for {node_rank}: {reason}")


class Frail(Manager):
    """Manager with an unknown bug."""

    def __init__(self, config: ManagerConfig) -> None:
        self.fails = threading.Event()
        super().__init__(config)

    def _turn(self) -> None:
        if self.fails.is_set():
            self.fails.clear()
            raise ZeroDivisionError("once")
        super()._turn()


@pytest.fixture
def make(run_dir: Path) -> Iterator[Make]:
    """Yield a function that starts managers of a job with one node and two ranks."""
    made: list[Manager] = []

    def start(cluster: Stubborn | None = None, **keys: object) -> Manager:
        whole = {"job_id": "job", "node_nums": 1, "proc_per_node": 2, "port": 0, "run_dir": str(run_dir), **keys}
        made.append(Manager(ManagerConfig.from_mapping(whole, env={}), cluster))
        made[-1].start()
        return made[-1]

    yield start
    for manager in made:
        manager.stop()


def linked(manager: Manager) -> AgentSocket:
    return AgentSocket(manager.address, security_of(manager))


def journal(manager: Manager, event: str) -> list[dict[str, Any]]:
    whole = manager._journal.path.read_text().rpartition("\n")[0]  # the last line may be incomplete
    entries = [json.loads(line) for line in whole.splitlines()]
    return [entry for entry in entries if entry["event"] == event]


def variants() -> Iterator[Value]:
    for message in MESSAGES:
        for _, value in changed(inspect.type_info(type(message)), msgspec.to_builtins(message)):
            yield value


def test_no_field_of_any_report_ends_the_manager(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """They come from a node without a place. The job's own node is served as before, and nothing of it changes."""
    manager = make()
    with Agent(manager) as agent, linked(manager) as stranger:
        before = agent.obey(Order.RUN)
        until(stranger, lambda _: stranger.connected)
        for value in variants():
            frame = codec.MAGIC + bytes([codec.WIRE_VERSION]) + msgspec.msgpack.encode(value)
            if len(frame) <= codec.MAX_FRAME_BYTES:
                stranger._socket.send(frame)
        assert agent.obey(Order.RUN).generation == before.generation
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(caplog.records) < 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"generation": 2**31}, "generation or incarnation 2147483648"),
        ({"ranks": (rank(0, incarnation=2**40), rank(1))}, "generation or incarnation 1099511627776"),
        ({"ledger": Ledger(term=2**52)}, "found a manager of term 4503599627370496"),
        ({"node_rank": -1, "ranks": (rank(0),)}, "found ranks on a node without a place"),
    ],
)
def test_nobody_takes_the_job_into_the_far_future(make: Make, changes: dict[str, object], reason: str) -> None:
    manager = make()
    with Agent(manager) as agent, Agent(manager) as stranger:
        agent.obey(Order.RUN)
        refusal = stranger.ask(**changes)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason
        assert agent.obey(Order.RUN).generation == 0


def test_the_modules_of_many_nodes_still_fit_a_message(make: Make) -> None:
    manager = make()
    with Agent(manager) as agent, linked(manager) as spare:
        agent.obey(Order.RUN)
        for node in range(4):
            assert agent.link.send(Modules(names=tuple(f"node{node}.module{number:04}" for number in range(6000))))
        until(spare, lambda _: spare.connected)
        assert spare.send(STATUS)
        heard = until(spare, lambda got: any(isinstance(message, Modules) for message in got))
        taught = next(message for message in heard if isinstance(message, Modules))
        assert 5000 < len(taught.names) < 24_000
        assert agent.obey(Order.RUN).generation == 0


def test_nobody_without_a_place_has_a_spare_import_anything(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    manager = make()
    with Agent(manager) as agent, linked(manager) as spare, linked(manager) as stranger:
        agent.obey(Order.RUN)
        until(stranger, lambda _: stranger.connected)
        for _ in range(2):
            assert stranger.send(Modules(names=("antigravity",)))
            assert stranger.send(Drain(job_id="another", node="1"))
            until(stranger, bool)  # it was read
        assert agent.link.send(Modules(names=("numpy",)))
        until(spare, lambda _: spare.connected)
        assert spare.send(STATUS)
        heard = until(spare, lambda got: any(isinstance(message, Modules) for message in got))
        assert [message.names for message in heard if isinstance(message, Modules)] == [("numpy",)]
    (told,) = [message for message in caplog.messages if "names of modules" in message]
    assert "a peer without a place in the job" in told


def test_what_a_manager_cannot_do_costs_nothing_else(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Stubborn()
    manager = make(cluster, node_nums=2, recover_strategy="recover")
    with Agent(manager) as first, Agent(manager, "another") as second:
        first.ask(node_count=2)
        second.ask(node_count=2, node_rank=1, ranks=(rank(2), rank(3)))
        first.obey(Order.RUN)
        second.obey(Order.RUN)
        dead = (rank(2, Stage.DEAD, cause="signal 9"), rank(3, Stage.DEAD, cause="signal 9"))
        assert second.link.send(msgspec.structs.replace(second.status, sequence=99, ranks=dead, leaving=True))
        assert first.obey(Order.PAUSE).generation == 1
    assert cluster.asked == 1
    (failure,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "AskCluster was not done by a bug" in failure.getMessage()


def test_a_manager_that_fails_begins_anew_and_serves_the_job_on(run_dir: Path) -> None:
    """The agents' reports restore its view of the job."""
    keys = {"job_id": "job", "node_nums": 1, "proc_per_node": 2, "port": 0, "run_dir": str(run_dir)}
    manager = Frail(ManagerConfig.from_mapping(keys, env={}))
    manager.start()
    trained = (rank(0, generation=4, step=70), rank(1, generation=4, step=70))
    with Agent(manager) as agent:
        before = agent.obey(Order.RUN, ranks=trained, generation=4)
        manager.fails.set()
        after = agent.obey(Order.RUN, newer_than=before.sequence)
        assert not manager.fails.is_set()
        assert after.ledger.term > before.ledger.term
        assert after.generation == 4
        pause = agent.obey(Order.PAUSE, ranks=(trained[0], rank(1, Stage.DEAD, generation=4)))
        assert pause.generation == 5
    manager.stop()


def test_nobody_speaks_for_another(make: Make) -> None:
    """The forger has the job's secret, and all facts that the manager sends agents about each other."""
    manager = make()
    with Agent(manager) as agent, linked(manager) as forger:
        told = agent.obey(Order.RUN).places[0].agent_id
        assert told == agent.status.agent_id
        until(forger, lambda _: forger.connected)
        dead = (rank(0, Stage.DEAD, cause="signal 9"), rank(1, Stage.DEAD, cause="signal 9"))
        forged = msgspec.structs.replace(agent.status, sequence=10**6, ranks=dead, leaving=True, proof="")
        for proof in ("", told, "its prooF"):
            assert forger.send(msgspec.structs.replace(forged, proof=proof))
            assert forger.send(messages.EvidenceReport(job_id="job", agent_id=told, probe=0, evidence={}, proof=proof))
        assert until(forger, lambda _: manager._socket.refused["identity"] >= 6) == []
        assert agent.obey(Order.RUN).generation == 0


def test_nobody_speaks_for_the_ranks_of_another(make: Make) -> None:
    """Its reports have its own name and another agent's place: dead ranks, other processes, strange evidence."""
    manager = make()
    with Agent(manager) as agent, Agent(manager, "another") as liar:
        agent.obey(Order.RUN)
        dead = (rank(0, Stage.DEAD, pid=1), rank(1, Stage.DEAD, pid=1))
        assert liar.obey(Order.RUN, ranks=dead, standbys=7, leaving=True).generation == 0
        invented = Evidence(NodeRank(0), Process(1), position=RankPosition(2**50), non_finite=NonFinite(2))
        raw = {JobRank(rank): msgspec.Raw(msgspec.msgpack.encode(invented)) for rank in range(2)}
        assert liar.link.send(
            messages.EvidenceReport(
                job_id="job", agent_id=liar.status.agent_id, probe=0, evidence=raw, proof=liar.status.proof
            )
        )
        assert liar.obey(Order.RUN).generation == 0
        assert agent.obey(Order.RUN).generation == 0
    assert [entry["pids"] for entry in journal(manager, "processes")] == [{"0": 100, "1": 101}]
    assert [entry["count"] for entry in journal(manager, "standbys")] == [1]
    assert journal(manager, "diagnosis") == []


def test_nobody_ends_the_manager_with_news_of_a_newer_one(make: Make) -> None:
    """A term of the next day is plausible. The training agents must know of it before their manager leaves."""
    manager = make()
    with Agent(manager) as agent, Agent(manager, "another") as liar:
        told = agent.obey(Order.RUN)
        for more in (1, 60_000):
            ledger = Ledger(term=told.ledger.term + more, places=(NodeRank(0),))
            for node_rank, ranks in ((0, agent.status.ranks), (-1, ())):
                liar.ask(ledger=ledger, node_rank=node_rank, ranks=ranks)
        assert agent.obey(Order.RUN).sequence == told.sequence
        assert journal(manager, "superseded") == []


def test_only_a_report_that_fits_leaves_the_job_to_torchrun(make: Make) -> None:
    """Only a node of the job may announce that its agent has ended by an error."""
    manager = make()
    with Agent(manager) as agent, Agent(manager, "another") as liar:
        until(liar.link, lambda _: liar.link.connected)
        refusal = liar.ask(deserted=True, node_count=7)
        assert isinstance(refusal, Refusal)
        assert "found 7 nodes" in refusal.reason
        agent.obey(Order.RUN)
        liar.obey(Order.RUN, deserted=True, node_count=1)
        refusal = agent.ask(deserted=True, generation=2**31)
        assert isinstance(refusal, Refusal)
        assert "generation or incarnation 2147483648" in refusal.reason
        agent.obey(Order.RUN, deserted=False, generation=0)
        refusal = agent.ask(deserted=True)
        assert isinstance(refusal, Refusal)
        assert "the agent of node 0 has ended by an error" in refusal.reason
        refusal = liar.ask(deserted=False)
        assert isinstance(refusal, Refusal)
        assert "the agent of node 0 has ended by an error" in refusal.reason


def await_waiting(manager: Manager, link: AgentSocket, count: int) -> None:
    """Wait until this number of nodes waits for a place."""
    until(link, lambda _: len(journal(manager, "node waits")) >= count)


def test_many_names_are_forgotten(make: Make) -> None:
    """Nodes that come, send one message, and stay silent."""
    manager = make(heartbeat_s=0.1, node_timeout_s=2.0)
    with Agent(manager) as agent, linked(manager) as crowd:
        agent.obey(Order.RUN)
        until(crowd, lambda _: crowd.connected)
        for wave in range(3):
            for number in range(250):
                proof = f"proof {wave}-{number}"
                crowd._socket.send(codec.encode(msgspec.structs.replace(STATUS, proof=proof, agent_id=agent_of(proof))))
            await_waiting(manager, crowd, 250 * (wave + 1))
            end_s = time.monotonic() + LIMIT_S
            while manager._core.world.nodes.candidates:
                assert time.monotonic() < end_s
                agent.obey(Order.RUN)
        assert len(manager._peers) <= 2 * (1 + most_waiting(1))


def test_evidence_that_cannot_be_read_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    manager = make()
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        own, proof = agent.status.agent_id, agent.status.proof
        for number in range(10):
            raw = msgspec.msgpack.encode(number if number % 2 else {"end": {"error": {"kind": "é"}}})
            evidence = {JobRank(0): msgspec.Raw(raw.replace(b"\xc3", b"\xff"))}
            told = messages.EvidenceReport(job_id="job", agent_id=own, probe=0, evidence=evidence, proof=proof)
            assert agent.link.send(told)
        until(agent.link, lambda _: manager._socket.refused["evidence"] >= 10)
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1


def test_a_manager_that_is_new_passes_over_what_it_cannot_place(make: Make) -> None:
    """It has taken over a job. One of its agents sends evidence before its first report: neither is at fault."""
    manager = make()
    with Agent(manager) as agent:
        until(agent.link, lambda _: agent.link.connected)
        own, proof = agent.status.agent_id, agent.status.proof
        told = messages.EvidenceReport(
            job_id="job", agent_id=own, probe=0, evidence={JobRank(0): msgspec.Raw(b"\x80")}, proof=proof
        )
        assert agent.link.send(told)
        agent.obey(Order.RUN)
        assert not manager._socket.refused


def test_what_was_refused_is_counted_in_the_journal(make: Make) -> None:
    manager = make()
    with Agent(manager) as agent, linked(manager) as stranger:
        agent.obey(Order.RUN)
        until(stranger, lambda _: stranger.connected)
        for _ in range(30):
            stranger._socket.send(b"nonsense")
        until(stranger, lambda _: manager._socket.refused["magic"] >= 30)
    manager.stop()
    assert [entry["counts"] for entry in journal(manager, "refused")] == [{"magic": 30}]
