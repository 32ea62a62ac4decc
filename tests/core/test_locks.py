"""Owner of a lock file, proven or only observed, and the diagnosis of ranks that wait for a lock."""

from dataclasses import replace

import pytest

from taskd.core.diagnosis.evidence import Evidence, LockFile, Process
from taskd.core.diagnosis.findings import Diagnosis, Kind
from taskd.core.diagnosis.locks import Hold, Sight, Signature, judge
from taskd.wire.kinds import NodeRank
from tests.core.scenarios import FAULTS, HANG, base, but, diagnosed, entered, native

SIGNED = Signature(boot="b", namespace=1, pid=77, start_ticks=5, device=8, inode=9, host="node-0")
DEAD = Sight(True, SIGNED, "b", 1, device=8, inode=9, alive=False, free=True)
AWAY = replace(DEAD, namespace=2, alive=None, local=True)


@pytest.mark.parametrize(
    ("sight", "hold", "words"),
    [
        (DEAD, Hold.STALE, "process 77 held it and has ended"),
        (replace(DEAD, there=False), Hold.GONE, "removed"),
        (replace(DEAD, alive=True), Hold.HELD, "process 77 holds it"),
        (replace(DEAD, free=False), Hold.HELD, "forked"),
        (replace(DEAD, children=2), Hold.LEFT, "2 still run"),
        (replace(DEAD, inode=10), Hold.UNKNOWN, "no process seen here has it open"),
        (replace(DEAD, device=9), Hold.UNKNOWN, "not signed"),
        (replace(DEAD, signature=None, open_by=("process 3 (cc)",)), Hold.UNKNOWN, "process 3 (cc) has it open"),
        (replace(DEAD, boot="c"), Hold.UNKNOWN, "process 77 of host node-0 has made it"),
        (AWAY, Hold.STALE, "another container"),
        (replace(AWAY, free=False), Hold.HELD, "another container"),
        (replace(AWAY, local=False), Hold.UNKNOWN, "file server"),
    ],
)
def test_whose_it_is(sight: Sight, hold: Hold, words: str) -> None:
    holding = judge(sight)
    assert holding.hold is hold
    assert words in holding.words


def waits(rank: int, owner: int = 0, *, stale: bool = False, world: int = 4) -> Evidence:
    """Return the evidence of a rank that waits for the lock of process `owner`."""
    file = LockFile("/cache/ext/lock", "process 77 held it and has ended" if stale else "somebody", owner, stale)
    known = native("hrtimer_nanosleep", "file_baton.py:9 in wait", waits="a sleep")(base(rank, world))
    return but(known, node=0, lock_file=file)


def diagnosis(evidence: dict[int, Evidence]) -> Diagnosis:
    found = diagnosed(evidence, range(len(evidence)), HANG)
    assert found is not None
    return found


def test_a_stale_lock_is_named_and_proven() -> None:
    evidence = {0: entered(base(0, 2)), 1: waits(1, stale=True, world=2)}
    found = diagnosis(evidence)
    assert (found.kind, found.culprits, found.victims, found.proven) == (Kind.LOCK_FILE, (1,), (0,), True)
    assert "waits for the lock file /cache/ext/lock: process 77 held it and has ended" in found.sentence


def test_who_waits_for_a_rank_that_builds_is_a_victim() -> None:
    """Rank 0 builds, with a compiler that hangs."""
    builds = FAULTS["blocked in native code"].culprit(base(0, 4))
    evidence = {0: builds, 1: waits(1, 4000), 2: waits(2, 4000), 3: entered(base(3, 4))}
    found = diagnosis(evidence)
    assert (found.kind, found.culprits, found.victims) == (Kind.BLOCKED, (0,), (1, 2, 3))


@pytest.mark.parametrize("gone", [False, True])
def test_the_process_of_that_number_is_on_another_node_or_gone(gone: bool) -> None:
    away = replace(base(2, 3), node=NodeRank(0 if gone else 1), process=Process(4999))
    away = FAULTS["SIGKILL"].culprit(away) if gone else entered(away)
    found = diagnosed({0: entered(base(0, 3)), 1: waits(1, 4999, world=3), 2: away}, range(3), HANG)
    assert found is not None
    assert found.kind is (Kind.KILLED if gone else Kind.LOCK_FILE)


def test_one_that_waits_for_itself_is_the_culprit() -> None:
    """The rank has entered a folder twice."""
    evidence = {0: entered(base(0, 2)), 1: waits(1, 4001, world=2)}
    found = diagnosis(evidence)
    assert (found.kind, found.culprits, found.proven) == (Kind.LOCK_FILE, (1,), False)
