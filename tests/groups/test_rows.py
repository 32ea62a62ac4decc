"""The rows of a mesh: the ranks of one whole replica, and the holders of absent ranks' shares."""

from collections import Counter

import pytest

from taskd.adaptors.groups.rows import MeshRows

HSDP = MeshRows(("dp_replicate", "dp_shard"), (3, 2), tuple(range(6)), frozenset({1}), frozenset())
TURNED = MeshRows(("dp_shard", "dp_replicate"), (2, 3), tuple(range(6)), frozenset({0}), frozenset())
"""The rows are ranks 0 and 3, 1 and 4, 2 and 5."""
TP = MeshRows(("dp", "tp"), (3, 2), tuple(range(6)), frozenset({1}), frozenset({1}))
STAGES = MeshRows(("pp", "dp", "tp"), (2, 2, 2), tuple(range(8)), frozenset({0, 2}), frozenset({0, 2}))
BOTH = MeshRows(("dp_replicate", "dp_shard", "tp"), (2, 2, 2), tuple(range(8)), frozenset({1, 2}), frozenset({2}))
PLAIN = MeshRows(("rank",), (4,), tuple(range(4)), frozenset(), frozenset())
SHUFFLED = MeshRows(("dp_replicate", "dp_shard"), (2, 2), (2, 0, 1, 3), frozenset({1}), frozenset())


def test_names_and_sizes() -> None:
    assert [(HSDP.row(rank).name, HSDP.row(rank).size) for rank in (0, 3, 4)] == [
        ("dp_replicate=0", 2),
        ("dp_replicate=1", 2),
        ("dp_replicate=2", 2),
    ]
    assert TURNED.row(4) == TURNED.row(1)
    assert (STAGES.row(2).name, STAGES.size) == ("dp=1", 4)
    assert (PLAIN.row(3).name, PLAIN.size) == ("rank=3", 1)
    assert SHUFFLED.row(2) == SHUFFLED.row(0)


@pytest.mark.parametrize(("rows", "present", "whole"), [
    (HSDP, (2, 3, 4, 5), True),
    (HSDP, (0, 1, 4, 5), True),
    (HSDP, (1, 2, 4, 5), False),
    (HSDP, (0, 1, 2), False),
    (TURNED, (0, 3), True),
    (TURNED, (0, 1), False),
    (STAGES, (2, 3, 6, 7), True),
    (STAGES, (0, 1, 2, 3), False),
    (PLAIN, (1, 3), True),
    (HSDP, (4, 5, 6, 7), False),
])  # fmt: skip
def test_what_can_go_on(rows: MeshRows, present: tuple[int, ...], whole: bool) -> None:
    assert rows.are_whole(present) is whole


@pytest.mark.parametrize(("rows", "present", "shares"), [
    (HSDP, range(6), 6),
    (HSDP, (2, 3, 4, 5), 6),
    (TURNED, (0, 2, 3, 5), 6),
    (TP, range(6), 3),
    (TP, (2, 3, 4, 5), 3),
    (STAGES, (2, 3, 6, 7), 2),
    (BOTH, (0, 1, 2, 3), 4),
    (PLAIN, (0, 2, 3), 4),
    (SHUFFLED, (1, 3), 4),
])  # fmt: skip
def test_each_share_is_worked_at_by_all_who_have_a_part_of_the_model(
    rows: MeshRows, present: tuple[int, ...], shares: int
) -> None:
    found = {rank: rows.shares(rank, present) for rank in present}
    assert {count for _, count, _ in found.values()} == {shares}
    workers = Counter(index for own, _, _ in found.values() for index, _ in own)
    assert workers == dict.fromkeys(range(shares), len(rows.ranks) // shares)
    sources = sorted(source for own, _, _ in found.values() for _, source in own)
    assert sources == sorted(rows.ranks), "each rank's work is done by one"
    for rank in present:  # ranks of a row have equally many shares, and the same part of the model as before
        together = [other for other in present if rows.row(other) == rows.row(rank)]
        assert len({len(found[other][0]) for other in together}) == 1
        cut = [rows._coordinates(rows.ranks.index(source)) for source in (rank, *(s for _, s in found[rank][0]))]
        assert len({tuple(at[one] for one in sorted(rows.cut)) for at in cut}) == 1


@pytest.mark.parametrize("rows", [HSDP, TURNED, SHUFFLED, PLAIN])
def test_where_the_model_is_not_cut_a_ranks_share_has_its_own_number(rows: MeshRows) -> None:
    everybody = range(len(rows.ranks))
    assert [rows.shares(rank, everybody)[0] for rank in everybody] == [[(rank, rank)] for rank in everybody]


def test_shares_of_ranks_that_work_at_the_same_data() -> None:
    assert [TP.shares(rank, range(6))[0] for rank in range(6)] == [[(rank // 2, rank)] for rank in range(6)]
    assert TP.shares(3, (2, 3, 4, 5)) == ([(0, 1), (2, 5)], 3, 2 / 3)
