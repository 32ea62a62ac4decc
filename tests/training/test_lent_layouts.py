"""Bucket layouts that travel with a state."""

import pytest

from taskd.adaptors.training.sharding.layout import LayoutRow, are_lent
from taskd.adaptors.training.sharding.lent_layouts import Layout, LentLayouts
from taskd.errors import RebuildError
from taskd.wire.kinds import WorldRank
from taskd.wire.messages import WorldPlan
from taskd.wire.state import Transfer

SETTLED, FIRST = 7, 8


def rows(*layouts: int) -> list[LayoutRow]:
    return [LayoutRow(layout == SETTLED, layout, 0) for layout in layouts]


def plan(*transfers: tuple[int, int]) -> WorldPlan:
    sent = tuple(Transfer(donor=WorldRank(donor), receivers=(WorldRank(to),)) for donor, to in transfers)
    return WorldPlan(
        generation=1, world_size=3, store_host="", store_port=0, target_step=1, adopt=(), transfers=sent, timeout_s=1
    )


@pytest.mark.parametrize(
    ("layouts", "transfers", "lent"),
    [
        ((SETTLED, FIRST, SETTLED), ((0, 1),), True),
        ((SETTLED, FIRST, FIRST), ((0, 1), (0, 2)), True),
        ((SETTLED, FIRST, FIRST), ((0, 1),), False),  # rank 2 receives nothing
        ((SETTLED, FIRST, FIRST), ((0, 1), (1, 2)), False),  # rank 2's donor has another layout
        ((SETTLED, FIRST), (), False),
    ],
)
def test_layouts_travel_with_states_where_all_that_need_one_are_sent_it(
    layouts: tuple[int, ...], transfers: tuple[tuple[int, int], ...], lent: bool
) -> None:
    assert are_lent(rows(*layouts), SETTLED, plan(*transfers)) == lent


def test_each_wrapper_takes_its_own() -> None:
    taken: dict[int, Layout] = {}
    lent = LentLayouts(takes={0: lambda one: taken.update({0: one}), 2: lambda one: taken.update({2: one})})
    lent.arrive({0: [[1], [0]], 1: [[5]], 2: [[2]]})
    assert taken == {0: [[1], [0]], 2: [[2]]}
    lent.arrive({})  # no layout is needed any more


def test_one_that_does_not_come_is_an_error() -> None:
    with pytest.raises(RebuildError, match="no bucket layout for DDP wrapper 3"):
        LentLayouts(takes={3: print}).arrive({0: [[0]]})
