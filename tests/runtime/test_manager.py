"""The manager's loop over real sockets, with scripted agents: which agents it serves, and a new manager's knowledge."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from taskd.config.manager import ManagerConfig
from taskd.config.security import Security
from taskd.errors import LinkError
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.links.loopback import secured
from taskd.runtime.manager.manager import Manager
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Condition, Directive, FromManager, NodeStatus, Order, RankStatus, Refusal, Stage
from tests.wire.peers import until

CLEAN = Condition.CLEAN
HEARTBEAT_S = 0.5
Make = Callable[..., Manager]


@pytest.fixture
def make(run_dir: Path) -> Iterator[Make]:
    """Yield a function that starts managers of a job with one node and two ranks."""
    made: list[Manager] = []

    def start(port: int = 0) -> Manager:
        keys = {"job_id": "job", "node_nums": 1, "proc_per_node": 2, "port": port, "run_dir": str(run_dir)}
        made.append(Manager(ManagerConfig.from_mapping(keys, env={})))
        made[-1].start()
        return made[-1]

    yield start
    for manager in made:
        manager.stop()


def security_of(manager: Manager) -> Security:
    """Return the security settings of its agents."""
    return secured(Security(job_id="job"), manager.address, manager._config.run_dir)


class Agent:
    """Agent of one node, whose ranks' reports come from the test."""

    def __init__(self, manager: Manager, proof: str = "its proof") -> None:
        self.link = AgentSocket(manager.address, security_of(manager))
        self.sequence = 0
        self.status = NodeStatus(
            job_id="job",
            node_rank=NodeRank(0),
            agent_id=agent_of(proof),
            proof=proof,
            sequence=0,
            node_count=1,
            ranks=(rank(0), rank(1)),
            store_host="127.0.0.1",
            store_port=1,
            standbys=1,
            max_restarts=5,
            generation=0,
        )

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def ask(self, **changes: object) -> FromManager:
        """Report until an answer comes. Return the newest answer."""
        self.sequence += 1
        self.status = msgspec.structs.replace(self.status, sequence=self.sequence, **changes)
        sent_s = float("-inf")

        def answered(got: list[FromManager]) -> bool:
            nonlocal sent_s
            if not got and time.monotonic() - sent_s > HEARTBEAT_S and self.link.connected:
                self.link.send(self.status)
                sent_s = time.monotonic()
            return bool(got)

        answer = until(self.link, answered)[-1]
        if isinstance(answer, Directive) and answer.order is not Order.FORM:
            self.status = msgspec.structs.replace(self.status, ledger=answer.ledger)
        return answer

    def obey(self, order: Order, newer_than: int = 0, **changes: object) -> Directive:
        """Report until this order comes. Earlier orders may come first."""
        answer = self.ask(**changes)
        while not (isinstance(answer, Directive) and answer.order is order and answer.sequence > newer_than):
            answer = self.ask()
        return answer


def rank(number: int, stage: Stage = Stage.TRAINING, **fields: object) -> RankStatus:
    known: dict[str, object] = {"incarnation": 0, "generation": 0, "step": 3, "condition": CLEAN, "pid": 100 + number}
    return msgspec.convert({"rank": number, "stage": stage, **known, **fields}, RankStatus, strict=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_id": "other"}, "found job 'other', expected 'job'"),
        ({"node_rank": 1}, "found node rank 1, expected 0 to 0"),
        ({"node_count": 2}, "found 2 nodes with 2 processes each, expected 1 with 2"),
        ({"ranks": (rank(0),)}, "found 1 nodes with 1 processes each"),
    ],
)
def test_whom_it_refuses(make: Make, changes: dict[str, object], reason: str) -> None:
    """It names the reason and continues to serve the agents that fit."""
    manager = make()
    with Agent(manager) as agent, Agent(manager) as stranger:
        assert agent.obey(Order.RUN).generation == 0
        refusal = stranger.ask(**changes)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason
        assert agent.obey(Order.RUN).generation == 0


def test_every_report_is_answered_and_a_loss_recovered(make: Make) -> None:
    with Agent(make()) as agent:
        first = agent.obey(Order.RUN)
        assert agent.ask() == first, "the same directive again"
        pause = agent.obey(Order.PAUSE, ranks=(rank(0), rank(1, Stage.DEAD, cause="signal 9 (SIGKILL)")))
        assert pause.generation == 1
        assert [(order.incarnation, order.joins) for order in pause.ranks] == [(0, False), (1, True)]
        new = {"incarnation": 1, "generation": 1, "step": -1, "condition": Condition.EMPTY}
        paused = (rank(0, Stage.PAUSED, generation=1), rank(1, Stage.PAUSED, **new))
        join = agent.obey(Order.JOIN, ranks=paused, generation=1)
        assert join.plan is not None
        assert (join.plan.target_step, join.plan.transfers[0].receivers) == (3, (1,))


def test_a_new_manager_goes_on_where_the_former_stopped(make: Make) -> None:
    """Generation and incarnations come from the agent. Its first directive is newer than the former manager's last."""
    former = make()
    newer = (rank(0, generation=4, step=70), rank(1, generation=4, step=70, incarnation=3))
    with Agent(former) as agent:
        agent.obey(Order.RUN)
        last = agent.obey(Order.RUN, ranks=newer, generation=4)
        former.stop()
        make(former.address.port)
        answer = agent.obey(Order.RUN, newer_than=last.sequence)
        assert answer.generation == 4
        assert [order.incarnation for order in answer.ranks] == [0, 3]
        dead = rank(0, Stage.DEAD, generation=4, step=70, cause="signal 9 (SIGKILL)")
        pause = agent.obey(Order.PAUSE, ranks=(dead, newer[1]))
        assert (pause.generation, [order.incarnation for order in pause.ranks]) == (5, [1, 3])


def test_a_second_manager_finds_the_port_in_use(make: Make) -> None:
    first = make()
    with pytest.raises(LinkError, match="in use by"):
        make(first.address.port)
    with Agent(first) as agent:
        agent.obey(Order.RUN)


def test_it_ends_when_the_job_has_and_the_agents_have_left(make: Make) -> None:
    manager = make()
    exited = (rank(0, Stage.EXITED), rank(1, Stage.EXITED))
    with Agent(manager) as agent:
        agent.obey(Order.RUN)
        assert agent.obey(Order.STOP, ranks=exited).exit_code == 0
        assert agent.link.send(msgspec.structs.replace(agent.status, sequence=agent.sequence + 1, leaving=True))
        assert manager._thread is not None
        manager._thread.join(20)
        assert not manager._thread.is_alive()
