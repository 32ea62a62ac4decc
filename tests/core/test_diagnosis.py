"""From evidence to diagnosis: each kind of fault, whatever the ranks' numbers, and whichever other ranks are silent."""

from collections.abc import Iterator, Mapping
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.core.diagnosis import diagnose as diagnosis
from taskd.core.diagnosis.account import WORDS
from taskd.core.diagnosis.diagnose import RULES
from taskd.core.diagnosis.evidence import Evidence, PythonError
from taskd.core.diagnosis.findings import PACES, VICTIMS, Kind, names
from taskd.core.diagnosis.jobview import Cut
from taskd.core.diagnosis.rhythm import Hang
from taskd.wire.kinds import NodeRank
from tests.core.scenarios import FAULTS, HANG, Fault, base, but, diagnosed, entered, known_of
from tests.core.test_faults import RETRY
from tests.core.test_waits import crossed
from tests.thorough import everyday

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
faults = st.sampled_from(list(FAULTS.values()))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_named_with_its_culprit_and_its_victims(fault: Fault) -> None:
    world = 8 if fault.cuts else 4
    evidence = fault.evidence(world=world)
    diagnosis = fault.diagnosis(evidence, world=world)
    assert diagnosis is not None
    assert diagnosis.kind is fault.kind
    assert diagnosis.culprits == ((2, 3) if fault.cuts else (2,))
    assert diagnosis.victims == (tuple(sorted(evidence.keys() - set(diagnosis.culprits))) if fault.victims else ())
    for words in fault.words:
        assert words in diagnosis.sentence
    assert diagnosis.sentence.endswith(".")
    assert "Why: " in diagnosis.sentence
    assert {fact.rank for fact in diagnosis.facts if fact.kind is fault.kind} == set(diagnosis.culprits)
    assert diagnosis.proven == fault.proven
    assert bool(diagnosis.proof) == fault.hang


def test_there_is_a_fault_and_a_word_for_each_kind() -> None:
    shown = {fault.kind for fault in FAULTS.values()} | {Kind.SILENT, Kind.STALLED, *VICTIMS, *PACES}
    shown.add(Kind.CORRUPTED)  # from the states that the ranks report: `test_comparing.py`
    assert shown == set(Kind) == set(WORDS)


def cases() -> Iterator[tuple[Mapping[int, Evidence], Hang | None, tuple[Cut, ...]]]:
    """Yield all faults, and cases that are no fault of a single rank."""
    for fault in FAULTS.values():
        yield (
            fault.evidence(),
            HANG if fault.hang else None,
            (Cut(NodeRank(1), NodeRank(0)), Cut(NodeRank(-1), NodeRank(1))) if fault.cuts else (),
        )
    waiting = {rank: entered(base(rank, 4)) for rank in range(4)}
    yield {0: waiting[0], 1: waiting[1]}, HANG, ()
    yield {1: FAULTS["infinite loop in Python"].culprit(base(1, 4))}, HANG, ()
    yield waiting, HANG, ()
    yield crossed(), HANG, ()
    yield {rank: known_of(step=40 + (rank > 0)) for rank in range(4)}, HANG, ()
    yield {rank: Evidence() for rank in range(4)}, HANG, ()


@pytest.mark.parametrize("index", range(len(RULES)), ids=[rule.find.__name__.strip("_") for rule in RULES])
def test_each_rule_is_needed(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule, some fault gets a different diagnosis."""

    def told() -> list[tuple[Kind, tuple[int, ...]] | None]:
        diagnoses = (diagnosed(evidence, range(4), hang, cuts) for evidence, hang, cuts in cases())
        return [(diagnosis.kind, diagnosis.culprits) if diagnosis is not None else None for diagnosis in diagnoses]

    before = told()
    monkeypatch.setattr(diagnosis, "RULES", RULES[:index] + RULES[index + 1 :])
    assert told() != before


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_two_ranks_are_enough(fault: Fault) -> None:
    evidence = fault.evidence([1], 2)
    diagnosis = diagnosed(
        evidence, range(2), HANG if fault.hang else None, (Cut(NodeRank(0), NodeRank(1)),) if fault.cuts else ()
    )
    assert diagnosis is not None
    assert diagnosis.kind is fault.kind
    assert diagnosis.culprits == () if fault.cuts else 1 in diagnosis.culprits
    assert diagnosis.culprits == (1,) or fault.relative


@given(fault=faults, order=st.permutations(range(8)), culprits=st.sets(st.integers(0, 7), min_size=1, max_size=3))
@SETTINGS
def test_other_numbers_for_the_ranks_change_nothing_else(fault: Fault, order: list[int], culprits: set[int]) -> None:
    culprits = {min(culprits)} if fault.cuts else culprits
    evidence = fault.evidence(culprits, 8)
    here = fault.diagnosis(evidence, culprits, 8)
    there = fault.diagnosis({order[rank]: known for rank, known in evidence.items()}, culprits, 8)
    assert here is not None
    assert there is not None
    assert there.kind is here.kind
    assert set(there.culprits) == {order[rank] for rank in here.culprits}
    assert set(there.victims) == {order[rank] for rank in here.victims}
    assert {(fact.rank, fact.kind) for fact in there.facts} == {(order[fact.rank], fact.kind) for fact in here.facts}


@given(fault=faults, culprits=st.sets(st.integers(0, 7), min_size=1, max_size=3), gone=st.sets(st.integers(0, 7)))
@SETTINGS
def test_without_the_evidence_of_victims_no_culprit_becomes_one(
    fault: Fault, culprits: set[int], gone: set[int]
) -> None:
    """A fault that only a comparison shows needs a majority of healthy ranks."""
    culprits = {min(culprits)} if fault.cuts else culprits
    evidence = fault.evidence(culprits, 8)
    before = fault.diagnosis(evidence, culprits, 8)
    assert before is not None
    assert fault.cuts or set(before.culprits) == culprits
    victims = sorted(gone - set(before.culprits))
    if fault.relative:
        del victims[max(0, 7 - 2 * len(culprits)) :]
    if fault.kind in (Kind.BEHIND, Kind.DEVICE_BEHIND, Kind.SKIPPED, Kind.EXITED_EARLY):
        victims = victims[: 7 - len(before.culprits)]
    heard = {rank: known for rank, known in evidence.items() if rank not in victims}
    after = fault.diagnosis(heard, culprits, 8)
    assert after is not None
    assert not set(after.victims) & set(before.culprits)
    if not fault.cuts:
        assert after.kind is before.kind
        assert after.culprits == before.culprits


@given(number=st.integers(1, 40), in_it=st.sets(st.integers(0, 7)), silent=st.sets(st.integers(0, 7), max_size=3))
@SETTINGS
def test_a_job_that_goes_on_has_no_diagnosis(number: int, in_it: set[int], silent: set[int]) -> None:
    """Some ranks wait for the others, as in every job. Some nodes may not have answered."""
    evidence = {rank: entered(base(rank, 8)) if rank in in_it else base(rank, 8) for rank in range(8)}
    heard = {rank: known for rank, known in evidence.items() if rank not in silent}
    assert diagnosed(heard, range(8)) is None


@pytest.mark.parametrize(
    "text", [text for text in RETRY if not text.startswith(("OSError", "RuntimeError: DataLoader"))]
)
def test_what_blames_a_connection_is_nobodys_own_failure(text: str) -> None:
    kind, _, message = text.partition(": ")
    failed = but(base(0, 2), error=PythonError(kind, message))
    assert diagnosed({0: failed, 1: base(1, 2)}) is None
    dead = FAULTS["SIGKILL"].culprit(base(1, 2))
    diagnosis = diagnosed({0: failed, 1: dead})
    assert diagnosis is not None
    assert (diagnosis.culprits, diagnosis.victims) == ((1,), (0,))
    hung = diagnosed({0: failed, 1: base(1, 2)}, hang=HANG)
    assert hung is not None


def test_whoever_is_not_heard_is_blamed_only_if_nothing_else_explains_it() -> None:
    waiting = {rank: entered(base(rank, 4)) for rank in (0, 1)}
    diagnosis = diagnosed(waiting, range(4), HANG)
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.culprits, diagnosis.victims) == (Kind.SILENT, (2, 3), (0, 1))
    for name in (
        "infinite loop in Python",
        "Python deadlock",
        "SIGSTOP",
        "GIL held by a C loop",
        "data loader blocked",
    ):
        guilty = {0: waiting[0], 1: FAULTS[name].culprit(base(1, 4))}
        diagnosis = diagnosed(guilty, range(4), HANG)
        assert diagnosis is not None
        assert (diagnosis.kind, diagnosis.culprits) == (FAULTS[name].kind, (1,))


def test_without_anything_known_no_rank_is_blamed() -> None:
    diagnosis = diagnosed({0: Evidence(), 1: Evidence()}, hang=HANG)
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.culprits) == (Kind.STALLED, ())
    assert diagnosis.sentence == (
        "No progress, cause unknown. Why: nothing that is known singles out a rank; "
        "no progress for 3.1 s after step 41. Not proven: their threads could not be looked at twice."
    )


def test_all_have_entered_and_no_node_says_who_is_cut_off() -> None:
    diagnosis = diagnosed({rank: entered(base(rank, 4)) for rank in range(4)}, hang=HANG)
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.culprits, diagnosis.victims) == (Kind.CONNECTION_CUT, (), (0, 1, 2, 3))


def test_orphans_of_a_dead_rank_are_told_beside_its_end() -> None:
    dead = FAULTS["SIGKILL"].culprit(FAULTS["orphaned DataLoader child"].culprit(base(1, 2)))
    diagnosis = diagnosed({0: base(0, 2), 1: dead})
    assert diagnosis is not None
    assert diagnosis.kind is Kind.KILLED
    assert [(fact.rank, fact.kind) for fact in diagnosis.facts] == [(1, Kind.KILLED), (1, Kind.ORPHANED)]


def test_the_sentence_says_what_happened_to_whom_and_why() -> None:
    fault = FAULTS["SIGSEGV in native code"]
    diagnosis = fault.diagnosis(fault.evidence())
    assert diagnosis is not None
    assert diagnosis.sentence == (
        "Rank 2 (node 1, pid 4002, step 41) crashed in native code: SIGSEGV (exit code 139): an invalid memory access "
        "at address 0x10 in thread python; backtrace libfast.so+0x1234 < libtorch.so+0x99; it has not entered "
        "allgather 57 of communicator 0007 (256 B). Ranks 0, 1 and 3 wait in allgather 57 of communicator 0007 (256 B) "
        "for 3.0 s. Why: the kernel sent the signal for what a thread of it had done."
    )


@pytest.mark.parametrize(
    "name", everyday(["SIGKILL", "infinite loop in Python", "sends another size", "connection cut"], "SIGKILL")
)
def test_sixteen_thousand_ranks_take_no_longer_each(name: str) -> None:
    fault = FAULTS[name]
    spent = []
    for world in (1024, 16_384):
        evidence = fault.evidence([world // 3], world)
        began = process_time()
        diagnosis = fault.diagnosis(evidence, [world // 3], world)
        spent.append((process_time() - began) / world)
        assert diagnosis is not None
        assert world // 3 in diagnosis.culprits
        assert diagnosis.kind is fault.kind
        assert len(diagnosis.sentence) < 1500
    assert spent[1] < 6 * spent[0], "with a step for each pair of ranks it would be 16 times as much"


def test_names_of_ranks() -> None:
    assert names([3]) == "rank 3"
    assert names([1, 0]) == "ranks 0 and 1"
    assert names([0, 1, 3]) == "ranks 0, 1 and 3"
    assert names([0, 4, 5, 6, 7, 9]) == "ranks 0, 4-7 and 9"
    assert names(range(0, 100, 2)) == "ranks 0, 2, 4, 6, 8, 10 … (50 in all)"
