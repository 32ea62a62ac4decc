"""The judge of the faults: it accepts correct results, and finds each kind of defect."""

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.judge import Event, Expected, Seen, judge

STEPS, RANKS = 20, 4
EXPECTED = Expected(("STOPPED",), ((2,),), 2.12, recovers=True, replaced=(2,))
REPORTED = Expected(("SLOW",), ((2,),), 10.0, recovers=False)
OUTCOME = {rank: {"step": STEPS, "weights": "same"} for rank in range(RANKS)}


def diagnosis(at_s: float, kind: str = "STOPPED", culprits: tuple[int, ...] = (2,), fault: int = 1) -> Event:
    facts = [{"rank": rank, "kind": kind, "text": "was seen"} for rank in culprits]
    told: dict[str, Any] = {"fault": fault, "kind": kind, "culprits": list(culprits), "facts": facts}
    return {"event": "diagnosis", "monotonic_s": at_s, "sentence": f"{kind} {culprits}", "proven": True, **told}


def recovered(at_s: float, *replaced: int) -> Event:
    names = {str(rank): 4242 for rank in replaced}
    return {"event": "recovered", "monotonic_s": at_s, "replaced": names, "reason": "it had to be"}


def seen(*events: Event, struck_s: tuple[float, float] | None = (100.0, 100.0), status: int | None = 0) -> Seen:
    return Seen(events, struck_s, status, OUTCOME)


GOOD = seen(diagnosis(101.0, "STALLED", ()), diagnosis(102.0), diagnosis(102.5), recovered(103.0, 2))


def test_what_is_as_it_should_be() -> None:
    assert judge(EXPECTED, GOOD, STEPS, RANKS) == []
    assert judge(REPORTED, seen(diagnosis(105.0, "SLOW")), STEPS, RANKS) == []


def test_the_time_is_that_of_the_first_event_that_stays() -> None:
    assert GOOD.diagnosis_s == pytest.approx(2.0)
    changed = seen(diagnosis(100.5), diagnosis(101.0, "STALLED", ()), diagnosis(101.5))
    assert changed.diagnosis_s == pytest.approx(1.5)


def test_of_several_faults_the_last_one_counts() -> None:
    both = Expected(("KILLED",), ((1, 2),), 0.5, recovers=True)
    events = diagnosis(100.1, "KILLED", (1,)), diagnosis(100.6, "KILLED", (1, 2)), recovered(101.0, 1, 2)
    found = seen(*events, struck_s=(100.0, 100.4))
    assert found.diagnosis_s == pytest.approx(0.2)
    assert judge(both, found, STEPS, RANKS) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (seen(struck_s=None), "the fault itself did not come"),
        (seen(recovered(103.0, 2)), "no diagnosis"),
        (seen(diagnosis(102.0, "LOOP"), recovered(103.0, 2)), "kind LOOP"),
        (
            seen({**diagnosis(102.0), "proven": False, "proof": "it ran"}, recovered(103.0, 2)),
            "proven False, expected True: it ran",
        ),
        (seen(diagnosis(102.0, culprits=(1, 2)), recovered(103.0, 2)), r"culprits \[1, 2\]"),
        (seen(diagnosis(102.2), recovered(103.0, 2)), "diagnosis after 2.200 s"),
        (seen(diagnosis(99.0), diagnosis(102.0, fault=2), recovered(103.0, 2)), "false alarm"),
        (seen(diagnosis(102.0), recovered(103.0, 2), diagnosis(104.0, fault=2)), "false alarm"),
        (seen(diagnosis(101.0, "SLOW", (3,)), diagnosis(102.0, fault=2), recovered(103.0, 2)), "false alarm: SLOW"),
        (seen(diagnosis(102.0)), "no recovery"),
        (seen(diagnosis(102.0), recovered(103.0, 1)), "have kept their processes"),
        (seen(diagnosis(102.0), recovered(103.0, 2), recovered(104.0, 2)), "a second recovery"),
        (replace(GOOD, status=1), "the job ended with 1"),
        (replace(GOOD, status=None), "the job has not ended"),
        (replace(GOOD, outcome={rank: OUTCOME[rank] for rank in range(3)}), "steps done in the end"),
        (replace(GOOD, outcome={**OUTCOME, 3: {"step": STEPS, "weights": "other"}}), "weights differ"),
    ],
)
def test_each_thing_that_can_be_wrong(found: Seen, complaint: str) -> None:
    assert len(judge(EXPECTED, found, STEPS, RANKS)) == 1
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(judge(EXPECTED, found, STEPS, RANKS))


def test_what_is_only_told_must_not_interrupt() -> None:
    found = seen(diagnosis(105.0, "SLOW"), recovered(106.0))
    assert judge(REPORTED, found, STEPS, RANKS) == ["1 recoveries, where nothing had to be done"]


def test_what_must_be_told_besides() -> None:
    wanted = replace(EXPECTED, facts=("ORPHANED",))
    assert judge(wanted, GOOD, STEPS, RANKS) == ["not told besides: ORPHANED"]
