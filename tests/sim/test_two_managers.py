"""Two managers of one job, each on its side of a network that was cut: they never both decide."""

from collections.abc import Callable

import pytest

from taskd.core.world import World
from taskd.wire.messages import NodeStatus
from tests.sim.scenario import divided
from tests.sim.world import play

SEEDS = 250
pytestmark = pytest.mark.timeout(110)
Patch = pytest.MonkeyPatch


def test_two_managers_never_both_decide() -> None:
    outcomes = [play(divided(seed)) for seed in range(SEEDS)]
    broken = next((outcome for outcome in outcomes if outcome.breach), None)
    assert broken is None, f"{divided(broken.seed)}\nseed {broken.seed}: {broken.breach}"
    assert sum(outcome.successes for outcome in outcomes) > SEEDS


def everybody_has_a_voice(patch: Patch) -> None:
    """A node that waits on one side of the cut speaks for one on the other."""

    def most(self: World, members: dict[int, str], heard: list[NodeStatus]) -> bool:
        names = {status.agent_id for status in heard}
        present = {place for place, agent_id in members.items() if agent_id in names}
        first_heard = not members or min(members) in present
        return 2 * (len(present) + len(self.candidates)) > len(members) or first_heard

    patch.setattr(World, "_has_most", most)


def last_world_forgotten(patch: Patch) -> None:
    """Only the nodes of the world that is to come are asked."""
    honest = World._has_most
    patch.setattr(World, "is_known", lambda *_: True)
    patch.setattr(
        World, "_has_most", lambda self, members, heard: members is self.agreed or honest(self, members, heard)
    )


@pytest.mark.parametrize("mutate", [everybody_has_a_voice, last_world_forgotten])
def test_a_broken_fence_is_found(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    found = next((seed for seed in range(SEEDS) if play(divided(seed)).breach), None)
    assert found is not None, f"{mutate.__doc__} Not found within {SEEDS} seeds."
