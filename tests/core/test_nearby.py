"""Choice of the manager for a job of one node, where MASTER_ADDR is set and no setting names a manager."""

import pytest

from taskd.core.membership.nearby import LEAST_S, MOST_S, NearbyManager, choose_manager


@pytest.mark.parametrize(
    ("waited_s", "torchrun_s", "answers", "trouble", "choice"),
    [
        (0.0, 3.0, True, False, NearbyManager.USE),
        (99.0, 3.0, True, False, NearbyManager.USE),
        (2.9, 3.0, False, False, NearbyManager.WAIT),
        (3.0, 3.0, False, False, NearbyManager.EMBED),
        (0.0, 3.0, False, True, NearbyManager.EMBED),
        (LEAST_S / 2, 0.0, False, False, NearbyManager.WAIT),
        (LEAST_S, 0.0, False, False, NearbyManager.EMBED),
        (MOST_S, 1e6, False, False, NearbyManager.EMBED),
    ],
)
def test_it_waits_as_long_again_as_torchrun_has_taken(
    waited_s: float, torchrun_s: float, answers: bool, trouble: bool, choice: NearbyManager
) -> None:
    assert choose_manager(waited_s, torchrun_s, answers=answers, trouble=trouble) is choice
