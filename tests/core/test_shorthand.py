"""Unchanged facts are not sent again between an agent and its manager, but a new manager receives everything."""

from msgspec.structs import replace

from taskd.core.membership.shorthand import Shorthand, answer
from taskd.core.recovery import Phase
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Directive, Heard, Ledger, Order
from tests.core.driver import Job


def directive(sequence: int, term: int = 1) -> Directive:
    ledger = Ledger(term=term, places=tuple(map(NodeRank, (0, 1))))
    return Directive(job_id="job", sequence=sequence, generation=0, order=Order.RUN, ledger=ledger)


def test_a_directive_is_sent_once_and_holds_until_the_next() -> None:
    said, status = Shorthand(), Job().status(0)
    assert answer(status, directive(7)) == directive(7)
    said.hear(directive(7))
    brief = answer(replace(status, heard=said.heard), directive(7))
    assert brief == Heard(sequence=7)
    assert said.hear(brief) == directive(7)


def test_a_directive_that_was_lost_is_sent() -> None:
    said = Shorthand()
    said.hear(directive(7))
    assert said.hear(Heard(sequence=8)) is None
    status = replace(Job().status(0), heard=said.heard)
    assert answer(status, directive(8)) == directive(8)


def test_an_older_directive_that_comes_late_is_not_the_newest() -> None:
    said = Shorthand()
    said.hear(directive(8))
    assert said.hear(directive(7)) == directive(7)
    assert said.heard == 8


def test_a_ledger_is_given_back_to_all_but_who_has_written_it() -> None:
    said = Shorthand()
    obeyed = said.hear(directive(7, term=1))
    assert said.ledger(obeyed) == Ledger(term=1)
    said.hear(directive(900, term=2))  # from a new manager, which is not obeyed yet
    assert said.ledger(obeyed) == directive(7).ledger


def test_a_new_manager_takes_nothing_in_of_a_report_that_was_meant_for_another() -> None:
    whole = Ledger(term=5, places=tuple(map(NodeRank, (0, 1))))
    job = Job(nodes=2, per_node=1, sequence=1000)
    for node in range(2):
        job.hear(replace(job.status(node), ledger=Ledger(term=5)))
    assert (job.phase, job.order, job.core.world.ranks) == (Phase.FORMING, Order.FORM, {})
    for node in range(2):
        job.hear(replace(job.status(node), ledger=whole))
    assert job.phase is Phase.RUNNING
