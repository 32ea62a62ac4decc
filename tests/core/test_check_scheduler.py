"""When and with whom nodes are checked, and their orders: the manager's scheduler, with agents that obey at once."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from taskd.core.membership.places import Nodes
from taskd.core.nodecheck.diagnosis import DOWN_WORDS, SLOW_WORDS, NodeHealth
from taskd.core.nodecheck.scheduler import GRACE_S, Checked, CheckScheduler, RoundOver, Wanted
from taskd.core.policy import NodeCheckPolicy, Policy
from taskd.wire.checks import CheckOrder, CheckReport, CheckState, Cleared, Dismissed, Own, TrialResult
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus

WELL = Own(ok=True, compute_tflops=1.0, memory_gbps=10.0, loopback_gbps=5.0, disk_mbps=500.0, elapsed_s=0.5)


class Cluster:
    """Nodes that report, and a manager's scheduler that receives their reports."""

    def __init__(self, places: int, **limits: float) -> None:
        policy = Policy(job_id="job", node_count=places, ranks_per_node=1, node_check=NodeCheckPolicy(**limits))
        self.scheduler = CheckScheduler(policy, number=100)
        self.world = Nodes()
        self.now_s = 1000.0
        self.forming = True
        self.did: list[Any] = []
        self.statuses: dict[str, NodeStatus] = {}
        self.own: dict[str, Own] = {}
        self.fails: Callable[[str, str], bool] = lambda _one, _other: False
        self.gbps: Callable[[str, str], float] = lambda _one, _other: 1.0
        self.silent: set[str] = set()
        self.told: dict[str, list[Any]] = {}

    def come(self, *names: str, check: CheckState | None = None, **more: Any) -> None:
        """Start these nodes. Each wants to be checked, and to have the place that its name ends with."""
        for name in names:
            self.statuses[name] = NodeStatus(
                job_id="job", node_rank=NodeRank(-1), agent_id=name, sequence=0, node_count=0, ranks=(),
                store_host=name, store_port=29400, standbys=0, max_restarts=3, generation=0, host=f"host-{name}",
                wants=NodeRank(int(name[1:]) % 10), check=check or CheckState(wants=True, ready=True), **more,
            )  # fmt: skip
            self.report(name)

    def report(self, name: str, **changes: Any) -> None:
        status = self.statuses[name]
        self.statuses[name] = msgspec.structs.replace(status, sequence=status.sequence + 1, **changes)
        self.world.hear(self.statuses[name], self.now_s)
        self.scheduler.hear(self.statuses[name])

    def leave(self, name: str) -> None:
        self.report(name, leaving=True)
        del self.statuses[name], self.world.candidates[name]

    def turn(self, passed_s: float = 0.25) -> None:
        """Let time pass. Every agent receives its order and obeys at once."""
        self.now_s += passed_s
        self.did += self.scheduler.tick(self.world, forming=self.forming, now_s=self.now_s)
        for name, status in list(self.statuses.items()):
            order = self.scheduler.order_for(status)
            if order is None or name in self.silent:
                continue
            self.told.setdefault(name, []).append(order)
            self._obey(name, order)

    def _obey(self, name: str, order: CheckOrder | Cleared | Dismissed) -> None:
        state = self.statuses[name].check or CheckState()
        if isinstance(order, Cleared):
            self.report(name, check=msgspec.structs.replace(state, cleared=True))
        elif isinstance(order, CheckOrder):
            own = self.own.get(name, WELL) if order.own else None
            trials = tuple(self._trial(name, trial.peer) for trial in order.trials)
            report = CheckReport(number=order.number, done=True, own=own, trials=trials)
            self.report(name, check=msgspec.structs.replace(state, report=report))

    def _trial(self, name: str, peer: str) -> TrialResult:
        failed = self.fails(name, peer.removeprefix("host-"))
        if failed:
            return TrialResult(peer=peer, ok=False, cause="no answer", elapsed_s=2.0)
        rate = self.gbps(name, peer.removeprefix("host-"))
        return TrialResult(peer=peer, ok=True, gbps=rate, latency_s=0.0001, elapsed_s=0.4)

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            self.turn()

    def orders(self, name: str) -> list[CheckOrder]:
        return [order for order in self.told.get(name, []) if isinstance(order, CheckOrder)]

    @property
    def checks(self) -> list[Checked]:
        return [action for action in self.did if isinstance(action, Checked)]

    @property
    def cleared(self) -> set[str]:
        return {name for name, told in self.told.items() if any(isinstance(order, Cleared) for order in told)}

    @property
    def dismissed(self) -> dict[str, str]:
        return {
            name: order.reason for name, told in self.told.items() for order in told if isinstance(order, Dismissed)
        }


def test_a_job_that_forms_is_checked_when_all_are_there() -> None:
    cluster = Cluster(4)
    cluster.come("n0", "n1", "n2")
    cluster.turns()
    assert not cluster.told
    cluster.come("n3")
    for _ in range(4):
        cluster.turn(1.0)
    assert cluster.cleared == {"n0", "n1", "n2", "n3"}
    assert [check.rounds for check in cluster.checks] == [1]
    (over,) = [action for action in cluster.did if isinstance(action, RoundOver)]
    assert over.elapsed_s == {"0": 0.9, "1": 0.9, "2": 0.9, "3": 0.9}
    (order,) = cluster.orders("n1")
    assert (order.own, order.number) == (True, 101)
    (trial,) = order.trials
    assert (trial.peer, trial.first, trial.store_host, trial.store_port) == ("host-n0", False, "n0", 29400)


def test_what_is_cleared_is_told_once_it_is_known() -> None:
    cluster = Cluster(2)
    cluster.come("n0", "n1")
    cluster.turns()
    assert [len(cluster.told[name]) for name in ("n0", "n1")] == [2, 2], "an order and the end, each once"


@pytest.mark.parametrize(("least", "waited_s"), [(0, 600.0), (2, 30.0), (3, 600.0)])
def test_those_who_come_are_not_kept_waiting_for_ever(least: int, waited_s: float) -> None:
    cluster = Cluster(4)
    cluster.come("n0", "n1", min_nodes=least)
    cluster.turn()
    cluster.turn(waited_s - 1.0)
    assert not cluster.told
    cluster.turn(1.0)
    cluster.turns()
    assert cluster.cleared == {"n0", "n1"}


def test_a_faulty_node_leaves_and_its_successor_is_checked_with_those_that_are_well() -> None:
    cluster = Cluster(4)
    cluster.own["n2"] = Own(ok=False, cause="its check process ended with signal 9")
    cluster.fails = lambda one, other: "n2" in (one, other)
    cluster.come("n0", "n1", "n2", "n3")
    cluster.turns()
    assert cluster.cleared == {"n0", "n1", "n3"}
    assert cluster.dismissed["n2"].startswith(DOWN_WORDS)
    assert "signal 9" in cluster.dismissed["n2"]
    (wanted,) = [action for action in cluster.did if isinstance(action, Wanted)]
    assert wanted.node_rank == 2
    cluster.leave("n2")
    cluster.fails = lambda _one, _other: False
    before = {name: len(cluster.orders(name)) for name in ("n0", "n1", "n3")}
    cluster.come("n12")
    cluster.turns()
    assert "n12" in cluster.cleared
    after = {name: len(cluster.orders(name)) for name in before}
    assert sum(after.values()) - sum(before.values()) == 1, "one of those that are well helps"
    assert not any(order.own for name in before for order in cluster.orders(name)[before[name] :])


def test_a_newcomer_of_a_job_that_trains_is_checked_at_once_with_one_of_its_nodes() -> None:
    cluster = Cluster(2)
    cluster.forming = False
    cluster.come("n0", "n1", check=CheckState(wants=True, cleared=True))
    for place, name in enumerate(("n0", "n1")):
        cluster.world.assign(NodeRank(place), name)
        cluster.report(name, node_rank=place)
    cluster.come("n5")
    cluster.turns()
    assert cluster.cleared == {"n5"}
    assert [trial.peer for trial in cluster.orders("n5")[0].trials] == ["host-n0"]
    assert (cluster.orders("n0")[0].own, cluster.orders("n1")) == (False, [])


def test_a_spare_that_was_cleared_helps_before_a_node_that_trains() -> None:
    cluster = Cluster(1)
    cluster.forming = False
    cluster.come("n0", "n3", check=CheckState(wants=True, cleared=True))
    cluster.world.assign(NodeRank(0), "n0")
    cluster.report("n0", node_rank=0)
    cluster.come("n5")
    cluster.turns()
    assert [trial.peer for trial in cluster.orders("n5")[0].trials] == ["host-n3"]
    assert cluster.cleared == {"n5"}


def test_an_agent_that_falls_silent_costs_the_time_of_its_round() -> None:
    cluster = Cluster(4, timeout_s=40.0)
    cluster.silent.add("n3")
    cluster.come("n0", "n1", "n2", "n3")
    cluster.turns(8)
    assert cluster.cleared == set()
    order = cluster.scheduler.order_for(cluster.statuses["n3"])
    assert isinstance(order, CheckOrder)
    assert order.timeout_s == 15.0, "the others have shown what is enough"
    cluster.turns(int(2 * 4 * (15.0 + GRACE_S)))
    (check,) = cluster.checks
    assert check.diagnosis.having(NodeHealth.DOWN) == ("host-n3",)
    assert cluster.cleared == {"n0", "n1", "n2"}
    assert check.lasted_s < 2 * (40.0 + GRACE_S)


def test_who_waits_for_a_partner_that_has_failed_waits_no_longer() -> None:
    cluster = Cluster(2, timeout_s=200.0)
    cluster.own["n1"] = Own(ok=False, cause="no device")
    cluster.fails = lambda _one, _other: True
    cluster.silent.add("n0")
    cluster.come("n0", "n1")
    cluster.turns(8)
    order = cluster.scheduler.order_for(cluster.statuses["n0"])
    assert isinstance(order, CheckOrder)
    assert order.timeout_s < 5.0


@pytest.mark.parametrize("strict", [False, True])
def test_a_slow_node_leaves_only_if_that_was_asked_for(strict: bool) -> None:
    cluster = Cluster(4)
    cluster.own["n1"] = msgspec.structs.replace(WELL, compute_tflops=0.2)
    cluster.come("n0", "n1", "n2", "n3", check=CheckState(wants=True, strict=strict, ready=True))
    cluster.turns()
    (check,) = cluster.checks
    assert check.diagnosis.having(NodeHealth.SLOW) == ("host-n1",)
    assert ("n1" in cluster.cleared) is not strict
    assert cluster.dismissed.get("n1", "").startswith(SLOW_WORDS) is strict
    note = next(order.note for order in cluster.told["n1"] if isinstance(order, Cleared)) if not strict else "0.2"
    assert "0.2" in note


def test_of_two_that_fail_with_one_another_one_leaves_and_the_other_is_tried_again() -> None:
    cluster = Cluster(2)
    cluster.fails = lambda _one, _other: True
    cluster.come("n0", "n1")
    cluster.turns()
    assert set(cluster.dismissed) == {"n1"}
    assert cluster.cleared == set()
    assert "host-n0 and host-n1 fail with one another" in cluster.dismissed["n1"]
    cluster.leave("n1")
    cluster.come("n2")
    cluster.turns()
    assert set(cluster.dismissed) == {"n1", "n0"}, "it was in doubt twice"
    cluster.leave("n0")
    cluster.fails = lambda _one, _other: False
    cluster.come("n3")
    cluster.turns()
    assert cluster.cleared == {"n2", "n3"}


def test_a_node_that_was_cleared_by_an_earlier_manager_is_not_checked_again() -> None:
    cluster = Cluster(2)
    cluster.come("n0", "n1", check=CheckState(wants=True, cleared=True))
    cluster.turns()
    assert not cluster.told


def test_a_node_that_wants_no_check_is_left_alone() -> None:
    cluster = Cluster(2)
    cluster.come("n0", check=CheckState(wants=False))
    cluster.come("n1")
    cluster.turns()
    assert "n0" not in cluster.cleared
    assert cluster.orders("n0") == []


def test_only_nodes_that_may_train_get_a_place() -> None:
    cluster = Cluster(2)
    cluster.come("n4", "n5")
    assert cluster.world.candidate_for(NodeRank(4)) is None
    cluster.report("n5", check=CheckState(wants=True, cleared=True))
    assert cluster.world.candidate_for(NodeRank(4)) == "n5"


def test_a_round_begins_when_all_can_start_their_processes() -> None:
    cluster = Cluster(2, timeout_s=60.0)
    cluster.come("n0")
    cluster.come("n1", check=CheckState(wants=True))
    cluster.turns()
    assert not cluster.told
    cluster.report("n1", check=CheckState(wants=True, ready=True))
    cluster.turns(4)
    assert cluster.cleared == {"n0", "n1"}


def test_a_node_that_cannot_start_processes_is_not_waited_for_longer_than_a_round() -> None:
    cluster = Cluster(2, timeout_s=60.0)
    cluster.come("n0")
    cluster.come("n1", check=CheckState(wants=True))
    cluster.turn()
    cluster.turn(60.0)
    assert set(cluster.told) == {"n0", "n1"}


def test_where_cpus_move_the_bytes_a_link_may_be_slower() -> None:
    for backend, slow in (("gloo of torch 2.13", False), ("nccl 2.29", True)):
        cluster = Cluster(4)
        cluster.own = {
            name: msgspec.structs.replace(WELL, versions={"backend": backend}) for name in ("n0", "n1", "n2", "n3")
        }
        cluster.gbps = lambda one, other: 0.25 if "n1" in (one, other) else 1.0
        cluster.come("n0", "n1", "n2", "n3")
        cluster.turns()
        assert (cluster.checks[0].diagnosis.having(NodeHealth.SLOW) == ("host-n1",)) is slow
