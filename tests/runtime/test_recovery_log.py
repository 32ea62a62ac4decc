"""Lines on recoveries in the log of a torchrun whose manager runs elsewhere."""

import logging

import pytest

from taskd.runtime.agent.recovery_log import RecoveryLog
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, Ledger, Order, RankStatus, Stage

PLACE = NodeRank(1)
CAUSE = "the manager's log has the cause"


def directive(sequence: int, generation: int, order: Order) -> Directive:
    return Directive(
        job_id="job", sequence=sequence, generation=generation, order=order, ledger=Ledger(term=1), node_count=2
    )


def ranks(*incarnations: int) -> list[RankStatus]:
    return [
        RankStatus(rank=JobRank(2 + local), incarnation=number, generation=0, stage=Stage.TRAINING)
        for local, number in enumerate(incarnations)
    ]


def test_each_recovery_is_one_line_with_its_length_and_this_nodes_ranks(caplog: pytest.LogCaptureFixture) -> None:
    log = RecoveryLog()
    with caplog.at_level(logging.INFO, "taskd"):
        log.follow(directive(1, 0, Order.FORM), PLACE, ranks(0, 0), 1.0)
        log.follow(directive(2, 0, Order.RUN), PLACE, ranks(0, 0), 2.0)
        log.follow(directive(3, 1, Order.PAUSE), PLACE, ranks(0, 0), 10.0)
        log.follow(directive(4, 1, Order.JOIN), PLACE, ranks(0, 1), 12.0)
        assert caplog.messages == []
        for _ in range(2):  # the same order comes with each heartbeat
            log.follow(directive(5, 1, Order.RUN), PLACE, ranks(0, 1), 12.5)
        log.follow(directive(6, 2, Order.RUN), PLACE, ranks(0, 1), 20.0)
        log.follow(directive(4, 1, Order.JOIN), PLACE, ranks(0, 1), 21.0)
    assert caplog.messages == [
        f"the job trains again: generation=1 node=1 paused_s=2.5 new_ranks=3 kept_ranks=2; {CAUSE}",
        f"all processes of the job start anew: generation=2 node=1; {CAUSE}",
    ]


def test_a_job_that_forms_has_recovered_from_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = RecoveryLog()
    with caplog.at_level(logging.INFO, "taskd"):
        for sequence in range(1, 5):
            log.follow(directive(sequence, 0, Order.RUN), PLACE, ranks(0, 0), float(sequence))
    assert caplog.messages == []
