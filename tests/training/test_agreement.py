"""Agreement of all ranks over a store."""

import threading
import time
from collections.abc import Callable

import pytest
from torch.distributed import HashStore, Store

from taskd.adaptors.training.proof.agreement import AGREED, Agreement
from taskd.adaptors.training.tripwire import Interrupted, interrupt

LIMIT_S = 20.0


def nothing() -> None:
    """Report no interruption."""


def asked(count: int, ask: Callable[[Agreement], str]) -> list[str]:
    """Return the answers to `count` ranks, each on a thread of its own."""
    store, found = HashStore(), [""] * count

    def run(rank: int) -> None:
        found[rank] = ask(Agreement(store, "check", rank, count, nothing))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return found


def test_all_that_answer_alike_agree() -> None:
    assert asked(5, lambda one: one.ask("leave", "optimizer 0", LIMIT_S)) == [AGREED] * 5


def test_one_reason_against_it_is_everybodys() -> None:
    found = asked(3, lambda one: one.ask("leave", "optimizer 0", LIMIT_S, against="a closure" if one.rank == 1 else ""))
    assert found == ["rank 1: a closure"] * 3


def test_different_answers_are_no_agreement() -> None:
    found = asked(2, lambda one: one.ask("leave", f"optimizer {one.rank}", 0.2))
    assert found[0] == found[1]
    assert found[0].endswith("has waited 0.2 s for the others")


def test_a_rank_that_does_not_come_there_says_so() -> None:
    def ask(one: Agreement) -> str:
        if one.rank == 0:
            one.object("leave", "it has skipped the step")
            return ""
        return one.ask("leave", "optimizer 0", LIMIT_S)

    assert asked(2, ask)[1] == "rank 0: it has skipped the step"


@pytest.mark.timed
def test_a_rank_that_never_comes_is_not_waited_for() -> None:
    begun_s = time.monotonic()
    one = Agreement(HashStore(), "check", 0, 2, nothing)
    assert one.ask("leave", "optimizer 0", 0.3) == "rank 0 has waited 0.3 s for the others"
    assert time.monotonic() - begun_s < 2.0
    late = Agreement(one.store, "check", 1, 2, nothing)
    assert late.ask("leave", "optimizer 0", 0.3) == "rank 0 has waited 0.3 s for the others", "nor does it decide anew"


def test_two_questions_are_two() -> None:
    def ask(one: Agreement) -> str:
        first = one.ask("leave", "yes", LIMIT_S)
        return f"{first} {one.ask('same', 'yes', LIMIT_S, against='no' if one.rank else '')}"

    assert asked(2, ask) == [f"{AGREED} rank 1: no"] * 2


def test_a_fault_ends_the_wait() -> None:
    one = Agreement(HashStore(), "check", 0, 2, interrupt)
    with pytest.raises(Interrupted):
        one.ask("leave", "optimizer 0", LIMIT_S)


def test_a_store_that_fails_agrees_to_nothing() -> None:
    class Broken(Store):
        """Store whose server is gone."""

    one = Agreement(Broken(), "check", 0, 2, nothing)
    assert one.ask("leave", "optimizer 0", LIMIT_S).startswith("rank 0: the store of the default group failed")
    one.object("leave", "whatever")
