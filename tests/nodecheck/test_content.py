"""Data of a trial are compared element by element; and the report of an error of torch's."""

import pytest
import torch

from taskd.adaptors.nodecheck.devices import Device
from taskd.adaptors.nodecheck.trial import _Pair, _why
from taskd.errors import ProbeError

WORDS = 1000


@pytest.fixture
def pair() -> _Pair:
    return _Pair(None, 0, 4, Device("cpu", 0), 0.0)


def arrived(pair: _Pair) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(WORDS, dtype=torch.int32)
    return base, torch.cat([base + pair._mark(rank) for rank in range(4)])


def test_what_arrives_unchanged_passes(pair: _Pair) -> None:
    pair._round = 3
    pair._check(*arrived(pair))


@pytest.mark.parametrize("place", [0, WORDS, 4 * WORDS - 1])
def test_one_changed_bit_is_seen(pair: _Pair, place: int) -> None:
    base, everyone = arrived(pair)
    everyone[place] ^= 1
    with pytest.raises(ProbeError, match=f"1 of {WORDS} words from rank {place // WORDS} of the pair arrived changed"):
        pair._check(base, everyone)


def test_what_stayed_from_the_round_before_is_seen(pair: _Pair) -> None:
    base, everyone = arrived(pair)
    pair._round += 1
    with pytest.raises(ProbeError, match=f"{WORDS} of {WORDS} words from rank 0"):
        pair._check(base, everyone)


def test_parts_that_are_swapped_are_seen(pair: _Pair) -> None:
    base, everyone = arrived(pair)
    with pytest.raises(ProbeError, match="from rank 0"):
        pair._check(base, everyone.view(4, -1).flip(0).contiguous().view(-1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wait timeout after 44ms, keys: /taskd-check/t 1/0/1", "local rank 1 of this node did not come"),
        ("wait timeout after 44ms, keys: /taskd-check/t 1/0/2", "local rank 0 of b did not come"),
        ("wait timeout after 44ms, keys: /taskd-check/t 1/all", "wait timeout after 44ms, keys: /taskd-check/t 1/all"),
        ("Timed out waiting 83ms for recv", "the peer or the link was silent until the time was over"),
        ("Connection closed by peer [::1]", "Connection closed by peer [::1]"),
    ],
)
def test_errors_in_words(text: str, told: str) -> None:
    assert _why(text, ("this node", "b"), 2) == told
