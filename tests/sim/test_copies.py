"""The simulation detects a core that uses copies wrongly. Each mutation is one plausible mistake."""

from collections.abc import Callable, Mapping

import pytest

from taskd.core.recovery import planning, ranks, situation
from taskd.core.recovery.ranks import Loading, Restore
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankStatus
from tests.sim.world import simulate

Patch = pytest.MonkeyPatch
Held = Mapping[JobRank, RankStatus]
Keys = Mapping[JobRank, str | None]
SEEDS = 2000


def copies_of_any_set(patch: Patch) -> None:
    """A copy counts for every rank."""
    honest = ranks._copies

    def copies(held: Held, keys: Keys) -> ranks._Known:
        everything: dict[int, dict[JobRank, Loading]] = {}
        known = honest(held, keys)
        for steps in known.values():
            for step, loads in steps.items():
                everything.setdefault(step, {}).update(loads)
        first = {step: loads[min(loads)] for step, loads in everything.items()}
        return {
            key: {step: {rank: first[step]._replace(receiver=rank) for rank in loads} for step, loads in steps.items()}
            for key, steps in known.items()
        }

    patch.setattr(ranks, "_copies", copies)


def back_without_need(patch: Patch) -> None:
    """Copies are loaded although every set has a holder."""

    def plan_restore(held: Held, keys: Keys) -> Restore | None:
        restore = ranks.plan_restore(held, keys)
        if restore is None or restore.loads or restore.copied < 0:
            return restore
        own = tuple(Loading(rank, rank, rank) for rank in sorted(held))
        return Restore(restore.copied, (), (), own, restore.copied)

    patch.setattr(planning, "plan_restore", plan_restore)


def copies_never_found(patch: Patch) -> None:
    """The core ignores the ranks' reports of their copies."""
    patch.setattr(ranks, "_copies", lambda _held, _keys: {})


def shrinks_on_copies(patch: Patch) -> None:
    """A smaller world counts on copies of ranks that it does not have."""
    honest = situation._lost_set

    def lost_set(*args: object, from_copies: bool = True) -> str:
        return honest(*args, from_copies=True)  # type: ignore[arg-type]

    patch.setattr(situation, "_lost_set", lost_set)


def holder_mistaken(patch: Patch) -> None:
    """The owner of a state reads the copy, no matter which rank has reported it."""
    patch.setattr(ranks, "Loading", lambda receiver, _holder, of: Loading(receiver, receiver, of))


@pytest.mark.parametrize(
    "mutate", [copies_of_any_set, back_without_need, copies_never_found, shrinks_on_copies, holder_mistaken]
)
def test_a_core_that_uses_copies_wrongly_is_found(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    found = next((seed for seed in range(SEEDS) if simulate(seed).breach), None)
    assert found is not None, f"{mutate.__doc__} Not found within {SEEDS} seeds."
    print(f"seed {found}: {simulate(found).breach}")
