"""A node is lost or joins while the ranks cannot be paused: all restart in a world of another size."""

from typing import Any

import pytest

from taskd.core.policy import Strategy, StrategyPolicy
from taskd.core.recovery import Phase
from taskd.core.recovery.budget import EARLY_S
from taskd.wire.messages import Order, Stage
from tests.core.driver import Job


def without_sdk(**more: Any) -> Job:
    """Return a job in which no rank is inside a resilient function."""
    job = Job(nodes=3, per_node=1, **more)
    for node in range(3):
        job.send(node)
    job.silence(2)
    return job


def test_a_restart_for_which_no_node_comes_ends() -> None:
    job = without_sdk(wait_node_s=90.0, allowed=(Strategy.RECOVER, Strategy.EXIT))
    job.wait(100.0)
    assert "not recover: no node came within 90 s" in job.stopped.reason


def test_a_restart_for_which_no_node_comes_goes_on_with_fewer_and_grows_back() -> None:
    job = without_sdk(wait_node_s=90.0)
    job.wait(100.0)
    assert (job.phase, job.order, job.members) == (Phase.RESTARTING, Order.RUN, [0, 1])
    for rank in (0, 1):
        job.say(rank, Stage.STARTING, step=-1)
    record = job.successes[0].record
    assert (record.decision.strategy, record.decision.restart) == (Strategy.ELASTIC_TRAINING, True)
    job.wait(EARLY_S / 2)
    job.spare()
    assert (job.phase, job.members) == (Phase.RUNNING, [0, 1]), "they may be about to reach a resilient function"
    before = job.incarnations
    job.wait(EARLY_S / 2)
    assert (job.phase, job.order, job.members) == (Phase.RESTARTING, Order.RUN, [0, 1, 2])
    assert all(new > old for new, old in zip(job.incarnations, before, strict=False))
    assert not any(order.joins for order in job.directive.ranks)
    assert job.directive.ledger.spent == 1, "nothing has failed"


@pytest.mark.parametrize(("least", "members"), [(2, [0, 1]), (0, [0, 1, 2])])
def test_torchruns_own_range_allows_fewer_nodes_where_nobody_has_chosen(least: int, members: list[int]) -> None:
    job = Job(nodes=3, per_node=1, allowed=StrategyPolicy().allowed, wait_node_s=270.0, sized_wait_s=30.0)
    job.least = least
    for node in range(3):
        job.send(node)
    job.silence(2)
    job.wait(31.0)
    assert (job.phase, job.members) == (Phase.RESTARTING, members)
