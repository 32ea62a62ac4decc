"""Well-typed but senseless orders, from any peer in a manager's place: each is refused, and the agent lives on."""

import logging

import msgspec
import pytest

from taskd.core.membership.plausible import MOST_AHEAD, implausible, strange
from taskd.errors import RecoveryError
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.shape import Shape
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire import codec
from taskd.wire.bounds import LONGEST_S, MOST_RANKS, NUMBERS
from taskd.wire.checks import CheckOrder
from taskd.wire.codec import MAX_MODULES_BYTES, BadFrameError
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, Hello, Ledger, Order, Place, RankOrder, Stage, WorldPlan
from tests.launch import Launcher
from tests.runtime.local import Ear, start
from tests.runtime.scripted import ScriptedManager, stages
from tests.runtime.test_strange_reports import STATUS

LEDGER = Ledger(term=1)
PLAN = WorldPlan(
    generation=2, world_size=2, store_host="h", store_port=1, target_step=0, adopt=(), transfers=(), timeout_s=1.0
)


def directive(**fields: object) -> Directive:
    known = {"job_id": "default", "sequence": 1, "generation": 1, "order": Order.RUN, "ledger": LEDGER}
    return Directive(**{**known, **fields})  # type: ignore[arg-type]


def newcomer(rank: int) -> RankOrder:
    return RankOrder(rank=JobRank(rank), incarnation=1, joins=True)


def place(number: int, agent_id: str) -> Place:
    return Place(node_rank=NodeRank(number), agent_id=agent_id)


def say(manager: ScriptedManager, order: Directive) -> None:
    assert manager._peer is not None
    assert manager.socket.send(manager._peer, order)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"node_count": MOST_RANKS}, "expected at most 1048576 ranks"),
        ({"node_count": 2, "places": (place(2, "a"),)}, "found place 2, expected 0 to 1"),
        ({"places": (place(MOST_RANKS - 1, "a"),)}, "found place 1048575, expected 0 to 524287"),
        ({"node_count": 2, "ranks": (newcomer(4),)}, "found rank 4, expected 0 to 3"),
        ({"ranks": (newcomer(0),)}, "found a newcomer to a job of unknown size"),
        ({"order": Order.JOIN, "plan": PLAN}, "found a plan of generation 2, expected 1"),
    ],
)
def test_an_agent_refuses_what_cannot_be(
    agent: NodeAgent,
    manager: ScriptedManager,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, object],
    reason: str,
) -> None:
    """Also if the order gives that place to the agent itself. It then obeys the next valid order."""
    manager.until(lambda status: stages(status) == [Stage.STARTING] * 2)
    own = tuple(msgspec.structs.replace(one, agent_id=agent._node.agent_id) for one in fields.get("places", ()))  # type: ignore[attr-defined]
    order = directive(**{**fields, **({"places": own} if own else {})})
    assert reason in strange(order, 2)
    say(manager, order)
    manager.say(Order.RUN, 1, 1, 0)
    started = manager.until(lambda status: status.ranks[0].incarnation == 1)
    assert (started.node_rank, [rank.rank for rank in started.ranks]) == (0, [0, 1])
    assert agent._link is not None
    assert agent._link.refused["order"] == 1
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("number", [NUMBERS, 1 << 40])
def test_no_order_has_a_number_that_a_black_box_cannot_hold(number: int) -> None:
    """The core in C stores them in 32 bits, and the next one is counted from it."""
    orders = [
        directive(generation=number),
        directive(ranks=(RankOrder(rank=JobRank(0), incarnation=number),)),
        directive(plan=msgspec.structs.replace(PLAN, generation=number)),
    ]
    for order in orders:
        with pytest.raises(BadFrameError, match="Expected `int` <= 2147483646"):
            codec.decode_from_manager(codec.encode(order))


def test_a_rank_that_nobody_wants_by_now_is_not_started() -> None:
    """It was ordered and has waited for a standby; meanwhile the world has changed."""
    given = {"WORLD_SIZE": "4"}
    with pytest.raises(RecoveryError, match="found no rank 3 in the world of 1 ranks"):
        Shape.of(directive(ranks=(newcomer(0),), node_count=2), JobRank(3), 2, given, joins=False)


def test_a_check_by_an_impossible_clock_can_be_reported(
    agent: NodeAgent,
    manager: ScriptedManager,
) -> None:
    """The difference of its clock from the manager's is part of the results."""
    manager.until(lambda status: stages(status) == [Stage.STARTING] * 2)
    assert manager._peer is not None
    order = CheckOrder(job_id="default", number=1, own=True, trials=(), timeout_s=0.0, clock_s=-LONGEST_S)
    assert manager.socket.send(manager._peer, order)
    status = manager.until(lambda status: status.check is not None and status.check.report is not None)
    assert status.check is not None
    status = manager.until(lambda status: status.check.report.done)  # type: ignore[union-attr]
    assert status.check.report.own.clock_s == LONGEST_S  # type: ignore[union-attr]


def test_more_modules_than_a_message_holds_are_not_imported(launcher: Launcher, ear: Ear) -> None:
    """A template receives all names at once: a node's own and the manager's may be too many together."""
    pool = StandbyPool(ear.server, 1, lambda: 1)
    template = start(launcher, "member.py", ear.server.path, "template", 1)
    pool.hello(*greeting(ear))
    for part in range(3):  # for a living template, and for the next one
        pool.import_modules(tuple(f"part{part}.{number:05}{'x' * 200}" for number in range(500)))
    pool.import_modules(tuple(f"many.{number:05}{'x' * 200}" for number in range(5000)))
    assert 100_000 < sum(map(len, pool._modules)) <= MAX_MODULES_BYTES
    template.kill()
    template.wait()
    start(launcher, "member.py", ear.server.path, "template", 1)
    pool.hello(*greeting(ear))
    pool.close()


def greeting(ear: Ear) -> tuple[Peer, Hello]:
    peer, hello = ear.until(lambda _peer, message: isinstance(message, Hello))
    assert isinstance(hello, Hello)
    return peer, hello


def test_nobody_leads_a_job_step_by_step_to_where_no_agent_follows() -> None:
    """Each report is a little ahead of the last. The next order still fits into a message."""
    generation = 0
    for _ in range(5000):
        ahead = msgspec.structs.replace(STATUS, generation=generation + MOST_AHEAD)
        if implausible(ahead, generation=generation, forming=False, term=1):
            break
        generation += MOST_AHEAD
    assert generation > MOST_AHEAD
    codec.decode_from_manager(codec.encode(directive(generation=generation + 1)))
