"""Bounds for data that grows with peers' messages: a peer with the job's secret sends more than an honest one would."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from taskd.config.manager import ManagerConfig
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.manager.checks import MOST_INSPECTIONS
from taskd.runtime.manager.crowd import most_waiting
from taskd.runtime.manager.manager import Manager
from taskd.wire import codec, messages
from taskd.wire.checks import Inspect, Inspection
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Ledger, Order, Refusal
from tests.runtime.test_manager import Agent, rank, security_of
from tests.runtime.test_strange_reports import STATUS
from tests.wire.peers import until

NAMES = 2000


@pytest.fixture
def manager(run_dir: Path) -> Iterator[Manager]:
    """Yield a manager of one node with two ranks."""
    keys = {"job_id": "job", "node_nums": 1, "proc_per_node": 2, "port": 0, "run_dir": str(run_dir)}
    made = Manager(ManagerConfig.from_mapping(keys, env={}))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def liar(manager: Manager) -> Iterator[AgentSocket]:
    """Yield the link of a peer that knows the secret."""
    with AgentSocket(manager.address, security_of(manager)) as link:
        until(link, lambda _: link.connected)
        yield link


def say(liar: AgentSocket, frame: bytes) -> None:
    """Send the frame, and first read the answers to earlier ones: a full queue would block both ends."""
    liar.receive()
    liar._socket.send(frame)


def test_one_peer_with_many_names_is_not_many_nodes(
    manager: Manager, liar: AgentSocket, caplog: pytest.LogCaptureFixture
) -> None:
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        for number in range(NAMES):
            proof = f"proof {number}"
            say(liar, codec.encode(msgspec.structs.replace(STATUS, proof=proof, agent_id=agent_of(proof))))
        until(liar, lambda _: manager._socket.refused["crowd"] >= NAMES - 2 * most_waiting(1))
        assert len(manager._core.world.nodes.candidates) <= most_waiting(1)
        assert len(manager._peers) <= 3 * most_waiting(1)
        assert len(manager._peers.waiting) <= 3 * most_waiting(1)
        assert agent.obey(Order.RUN).generation == 0
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "found one more agent that wants a place, expected at most 260" in told


def test_those_that_wait_are_heard_on_when_there_is_no_room(manager: Manager, liar: AgentSocket) -> None:
    """So is a node of the job."""
    with Agent(manager) as agent, Agent(manager, "a spare's") as spare:
        agent.obey(Order.RUN)
        assert spare.obey(Order.RUN, node_rank=-1, ranks=()).order is Order.RUN
        for number in range(NAMES):
            proof = f"proof {number}"
            say(liar, codec.encode(msgspec.structs.replace(STATUS, proof=proof, agent_id=agent_of(proof))))
        until(liar, lambda _: manager._socket.refused["crowd"] > 0)
        assert spare.obey(Order.RUN)
        assert agent.obey(Order.RUN).generation == 0


def test_the_past_of_nodes_that_wait_has_a_sum(manager: Manager, liar: AgentSocket) -> None:
    """A report of a million places fits into a frame; a hundred such reports would not fit into memory."""
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        ledger = Ledger(term=1, places=(NodeRank(0),) * 1_000_000)
        for number in range(8):
            proof = f"proof {number}"
            large = msgspec.structs.replace(STATUS, proof=proof, agent_id=agent_of(proof), ledger=ledger)
            say(liar, codec.encode(large))
        until(liar, lambda _: manager._socket.refused["crowd"] == 4)
        known = [view.status.ledger for view in manager._core.world.nodes.candidates.values()]
        assert sum(len(ledger.places) for ledger in known) <= 4 << 20
        assert agent.obey(Order.RUN).generation == 0


def test_nobody_reports_evidence_of_the_ranks_of_others(
    manager: Manager, liar: AgentSocket, caplog: pytest.LogCaptureFixture
) -> None:
    """Each report names 4,096 other ranks, most of which do not exist."""
    nothing = msgspec.Raw(b"\x80")
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        for number in range(100):
            evidence = dict.fromkeys(map(JobRank, range(4096 * number, 4096 * (number + 1))), nothing)
            evidence_report = messages.EvidenceReport(
                job_id="job", agent_id=STATUS.agent_id, proof=STATUS.proof, probe=0, evidence=evidence
            )
            say(liar, codec.encode(evidence_report))
            own = msgspec.structs.replace(evidence_report, agent_id=agent.status.agent_id, proof=agent.status.proof)
            say(liar, codec.encode(own))
        until(liar, lambda _: manager._socket.refused["evidence"] == 200)
        assert set(manager._core.watch._evidence) <= {0, 1}
        assert agent.obey(Order.RUN).generation == 0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_ranks_beyond_the_job_are_none(manager: Manager) -> None:
    with Agent(manager) as agent:
        refusal = agent.ask(ranks=(rank(0), rank(2)))
    assert isinstance(refusal, Refusal)
    assert "found rank 2, expected 0 to 1" in refusal.reason


def test_a_node_without_a_place_writes_nothing_of_anothers_processes(manager: Manager) -> None:
    with Agent(manager) as agent, Agent(manager, "another's") as other:
        agent.obey(Order.RUN)
        for pid in range(1, 20):
            other.ask(ranks=(rank(0, pid=pid), rank(1, pid=pid)), standbys=pid)
        agent.obey(Order.RUN)
    written = manager._journal.path.read_text()
    assert written.count('"processes"') == 1
    assert written.count('"standbys"') == 1


def test_who_asks_for_many_checks_gets_some(manager: Manager, liar: AgentSocket) -> None:
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        refusals = []
        for number in range(MOST_INSPECTIONS + 5):
            say(liar, codec.encode(Inspect(job_id="job", key=f"key {number}")))
            got = until(liar, lambda got: any(isinstance(one, Inspection) for one in got))
            refusals += [one.refusal for one in got if isinstance(one, Inspection)]
        assert refusals[:MOST_INSPECTIONS] == [""] * MOST_INSPECTIONS
        assert all("others wait" in one for one in refusals[MOST_INSPECTIONS:])
        assert len(manager._node_checks._inspections) == MOST_INSPECTIONS
