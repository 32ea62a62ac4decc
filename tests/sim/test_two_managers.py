"""Two managers of one job, each on its side of a cut network: they never both decide."""

from collections.abc import Callable

import pytest

from taskd.core import agent
from taskd.core.agent import Start
from taskd.core.membership import quorum
from taskd.core.membership.places import Nodes
from taskd.core.recovery.handlers import building
from taskd.wire.messages import NodeStatus
from tests.sim.nodes import Agent
from tests.sim.process import Process
from tests.sim.scenario import divided
from tests.sim.world import play
from tests.thorough import everyday

SEEDS = 120
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("cooperative", everyday([True, False], True))
def test_two_managers_never_both_decide(cooperative: bool) -> None:
    outcomes = [play(divided(seed, cooperative=cooperative)) for seed in range(SEEDS)]
    broken = next((outcome for outcome in outcomes if outcome.breach), None)
    assert broken is None, f"{divided(broken.seed, cooperative=cooperative)}\nseed {broken.seed}: {broken.breach}"
    assert sum(outcome.successes for outcome in outcomes) > SEEDS // 2


def everybody_has_a_voice(patch: Patch) -> None:
    """A node that waits on one side of the cut counts for a node on the other side."""

    def most(nodes: Nodes, members: dict[int, str], heard: list[NodeStatus]) -> bool:
        names = {status.agent_id for status in heard}
        present = {place for place, agent_id in members.items() if agent_id in names}
        first_heard = not members or min(members) in present
        return 2 * (len(present) + len(nodes.candidates)) > len(members) or first_heard

    patch.setattr(quorum, "_has_most", most)


def last_world_forgotten(patch: Patch) -> None:
    """Only the nodes of the next world are counted."""
    honest = quorum._has_most
    patch.setattr(building, "is_known", lambda *_: True)
    patch.setattr(
        quorum, "_has_most", lambda nodes, members, heard: members is nodes.agreed or honest(nodes, members, heard)
    )


def older_term_obeyed(patch: Patch) -> None:
    """The directive with the newer generation is obeyed, whichever of two managers sent it."""
    patch.setattr(agent, "_age", lambda directive: (directive.generation, directive.sequence))


def managers_share_a_meeting_place(patch: Patch) -> None:
    """Processes that two managers have started for the same generation meet."""
    honest = Process.__init__

    def init(self: Process, agent: Agent, start: Start) -> None:
        honest(self, agent, start)
        self.term = min(start.term, 1)

    patch.setattr(Process, "__init__", init)


@pytest.mark.parametrize(
    ("mutate", "cooperative", "seeds"),
    [
        (everybody_has_a_voice, True, range(SEEDS)),
        (last_world_forgotten, False, range(305, 405)),
        (older_term_obeyed, False, range(1184, 1584)),
        (managers_share_a_meeting_place, False, range(487, 617)),
    ],
)
def test_a_broken_fence_is_found(
    mutate: Callable[[Patch], None], cooperative: bool, seeds: range, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    found = next((seed for seed in seeds if play(divided(seed, cooperative=cooperative)).breach), None)
    assert found is not None, f"{mutate.__doc__} Not found in {seeds}."
