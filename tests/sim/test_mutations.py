"""The simulation finds a core that is broken on purpose. Each mutation is one plausible mistake."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from taskd.core import agent, recovery
from taskd.core.agent import Evict, Fence, Node, Start
from taskd.core.membership.places import Nodes
from taskd.core.recovery import attempts, intake, planning, ranks, situation
from taskd.core.recovery.actions import Next, do
from taskd.core.recovery.attempts import release
from taskd.core.recovery.budget import Budget, Charge, Fault
from taskd.core.recovery.events import Finished, Joined, Kept, Lost, Undecided
from taskd.core.recovery.handlers import building, choosing, ending, membership, training
from taskd.core.recovery.handlers.common import fault, ignore
from taskd.core.recovery.job import Job
from taskd.core.recovery.machine import Recovery
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import (
    AnyPhase,
    Building,
    Choosing,
    Finishing,
    Joining,
    Pausing,
    Restarting,
    Resuming,
    Running,
    Strayed,
    Training,
)
from taskd.core.recovery.ranks import Giving, Restore
from taskd.core.recovery.world import RankView, World
from taskd.core.table import Row
from taskd.wire.kinds import JobRank, NodeRank, WorldRank
from taskd.wire.messages import Condition, Directive, Order, RankStatus, Stage, WorldPlan
from tests.sim.world import simulate

Patch = pytest.MonkeyPatch
Held = Mapping[JobRank, RankStatus]
Keys = Mapping[JobRank, str | None]
SEEDS = 2000


def put(patch: Patch, table: dict[Any, Row[Any, Any]], old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Let every row of `old` do `new`."""
    for pair, row in table.items():
        if row.act is old:
            patch.setitem(table, pair, Row(new, row.leads_to))


def incarnation_ignored(patch: Patch) -> None:
    """A report of a former process counts for its successor."""
    honest = intake._hear_rank

    def hear_rank(core: Recovery, status: RankStatus, now_s: float) -> None:
        view = core.world.ranks.get(status.rank)
        wanted = status if view is None else msgspec.structs.replace(status, incarnation=view.incarnation)
        honest(core, wanted, now_s)

    patch.setattr(intake, "_hear_rank", hear_rank)


def torn_donor(patch: Patch) -> None:
    """Whoever has the newest step gives, whatever its state is worth."""

    def plan_restore(held: Mapping[JobRank, RankStatus]) -> Restore | None:
        donor = max(held, key=lambda rank: (held[rank].condition is not Condition.EMPTY, held[rank].step))
        others = tuple(rank for rank in held if rank != donor)
        return Restore(held[donor].step, (), (Giving(donor, others),) if others else ())

    patch.setattr(planning, "plan_restore", plan_restore)


def same_generation(patch: Patch) -> None:
    """A loss in JOINING does not raise the generation."""

    def lose_more(_phase: Building, event: Lost, job: Job, now_s: float) -> Next:
        blamed = do(attempts.blame, {event.rank: job.cause(event.rank)})
        return Choosing(now_s), (blamed, do(attempts.choose_again, new_world=False))

    put(patch, recovery.TABLE, building.lose_more, lose_more)


def old_pause_counts(patch: Patch) -> None:
    """PAUSED of an older generation counts for this one."""

    def all_paused(self: World, *, newcomers: bool) -> bool:
        asked = (view for view in self.ranks.values() if view.joins is newcomers)
        return all(view.known is not None and view.known.stage is Stage.PAUSED for view in asked)

    patch.setattr(World, "all_paused", all_paused)


def early_release(patch: Patch) -> None:
    """RELEASE as soon as one rank has finished."""

    def finish(phase: Training, event: Finished, job: Job, now_s: float) -> Next:
        if job.world.ranks[event.rank].at(job.world.generation) is not Stage.FINISHED:
            return phase, ()
        return Finishing(now_s), (do(release), do(send, Order.RELEASE))

    put(patch, recovery.TABLE, training.finish, finish)


def no_waiting_for_death(patch: Patch) -> None:
    """A successor is started while the fenced process may still live."""

    def reconcile(self: Node, rank: JobRank) -> None:
        order = self._order(rank)
        if order is not None and order.incarnation > self.slots[rank].status.incarnation:
            self._out += [
                Fence(rank),
                Start(rank, order.incarnation, self.generation, order.joins, 0),
            ]
        else:
            Node.reconcile(self, rank)

    put(patch, agent.TABLE, Node.reconcile, reconcile)


def older_directive_obeyed(patch: Patch) -> None:
    """An agent obeys whatever directive comes last."""
    honest = Node.obey

    def obey(self: Node, directive: Directive) -> list[agent.Action]:
        self.directive = None
        return honest(self, directive)

    patch.setattr(Node, "obey", obey)


def budget_unlimited(patch: Patch) -> None:
    """The budget counts and never refuses."""

    def charge(self: Budget, faults: list[Fault], *, now_s: float = 0.0) -> Charge:
        self.spent += 1
        return Charge(True, "")

    patch.setattr(Budget, "charge", charge)


def stepped_is_clean(patch: Patch) -> None:
    """A state that has stepped but is not committed passes for clean."""
    honest = ranks.plan_restore

    def plan_restore(held: Held, keys: Keys) -> Restore | None:
        clean = {
            r: msgspec.structs.replace(h, condition=Condition.CLEAN) if h.condition is Condition.STEPPED else h
            for r, h in held.items()
        }
        return honest(clean, keys)

    patch.setattr(planning, "plan_restore", plan_restore)


def one_set_for_all(patch: Patch) -> None:
    """Whoever is clean gives its state to everybody."""
    patch.setattr(planning, "plan_restore", lambda held, _keys: ranks.plan_restore(held, dict.fromkeys(held, "")))


def all_adopt(patch: Patch) -> None:
    """A step that is counted as done by some is counted so by all who have stepped."""
    honest = ranks.plan_restore

    def plan_restore(held: Held, keys: Keys) -> Restore | None:
        restore = honest(held, keys)
        if restore is None or not restore.adopt:
            return restore
        return replace(restore, adopt=tuple(r for r, h in held.items() if h.condition is not Condition.EMPTY))

    patch.setattr(planning, "plan_restore", plan_restore)


def nobody_adopts(patch: Patch) -> None:
    """A step that is to be counted as done is not."""
    honest = ranks.plan_restore

    def plan_restore(held: Held, keys: Keys) -> Restore | None:
        restore = honest(held, keys)
        return restore if restore is None else replace(restore, adopt=())

    patch.setattr(planning, "plan_restore", plan_restore)


def a_lost_set_is_done_without(patch: Patch) -> None:
    """As long as anybody is left, the job goes on with what it holds."""

    def lost_set(world: World, _sets: Keys, unreachable: Collection[int], _left: str = "") -> str:
        left = any(not view.empty and rank not in unreachable for rank, view in world.ranks.items())
        return "" if left else "no rank is left to give its state"

    patch.setattr(situation, "_lost_set", lost_set)


def set_forgotten_with_the_process(patch: Patch) -> None:
    """A rank whose process has ended belongs to no replica set any more."""
    honest = RankView.note

    def note(self: RankView, status: RankStatus) -> None:
        honest(self, status)
        if status.stage is Stage.DEAD:
            self.replicas = None

    patch.setattr(RankView, "note", note)
    patch.setattr(situation, "_unknown_set", lambda *_: "")


def released_but_thought_inside(patch: Patch) -> None:
    """After RELEASE a loss is handled as if all others were still inside."""
    put(patch, recovery.TABLE, ending.lose_outside, training.lose)
    patch.setattr(World, "release", lambda self: None)


def quorum_ignored(patch: Patch) -> None:
    """A manager that hears nobody of the world decides about it."""
    patch.setattr(Job, "has_quorum", lambda *_: True)


def evicted_but_alive(patch: Patch) -> None:
    """A node that has lost its place keeps its processes."""
    honest = Node._move

    def move(self: Node, directive: Directive) -> None:
        slots = dict(self.slots)
        honest(self, directive)
        if any(isinstance(action, Evict) for action in self._out):
            self._out = []
            self.slots = slots

    patch.setattr(Node, "_move", move)


def never_grows(patch: Patch) -> None:
    """A node that comes back finds no place."""
    put(patch, recovery.TABLE, membership.grow, ignore)


def two_places_for_one(patch: Patch) -> None:
    """A candidate that has got a place is a candidate still."""
    honest = Nodes.assign

    def assign(self: Nodes, place: NodeRank, agent_id: str) -> None:
        view = self.candidates[agent_id]
        honest(self, place, agent_id)
        self.candidates[agent_id] = view

    patch.setattr(Nodes, "assign", assign)


def absent_ranks_expected(patch: Patch) -> None:
    """The plan of a smaller world names its receivers by their ranks in the full one."""

    def tell(job: Job, now_s: float, order: Order, plan: WorldPlan) -> None:
        by_rank = tuple(
            msgspec.structs.replace(
                t, donor=WorldRank(plan.ranks[t.donor]), receivers=tuple(WorldRank(plan.ranks[r]) for r in t.receivers)
            )
            for t in plan.transfers
        )
        send(job, now_s, order, msgspec.structs.replace(plan, transfers=by_rank))

    patch.setattr(planning, "send", tell)


def resumed_before_restored(patch: Patch) -> None:
    """RESUMING begins as soon as all have joined, and is over when one has committed."""

    def advance(phase: Joining | Resuming, _event: Joined, job: Job, now_s: float) -> Next:
        if any(view.at(job.world.generation) is Stage.COMMITTED for view in job.world.ranks.values()):
            return Running(now_s), (do(attempts.succeed),)
        return phase, ()

    put(patch, recovery.TABLE, building.advance, advance)


def resuming_without_end(patch: Patch) -> None:
    """The first step of a new world is waited for without end."""
    honest = building.advance

    def advance(phase: Joining | Resuming, event: Joined, job: Job, now_s: float) -> Next:
        following, commands = honest(phase, event, job, now_s)
        return replace(following, until_s=float("inf")) if isinstance(following, Resuming) else following, commands

    put(patch, recovery.TABLE, building.advance, advance)


def strayed_for_ever(patch: Patch) -> None:
    """The news that explains why a rank has come out is awaited without end."""

    def stray(phase: Training, _event: AnyPhase, job: Job, now_s: float) -> Next:
        ended = job.ended()
        return fault(now_s, ended) if ended else (Strayed(now_s, float("inf")), ())

    put(patch, recovery.TABLE, training.stray, stray)


def losses_after_the_end_forgotten(patch: Patch) -> None:
    """After RELEASE a loss sets no time by which the others must be inside again."""
    put(patch, recovery.TABLE, ending.lose_outside, ignore)


def nothing_looked_at_again(patch: Patch) -> None:
    """What was heard while a world was built is forgotten when it runs."""
    patch.setattr(Recovery, "_review", lambda *_: None)


def undecided_for_ever(patch: Patch) -> None:
    """Nobody looks again whether enough nodes are heard."""
    put(patch, recovery.TABLE, membership.decide, ignore)


def decided_by_too_few(patch: Patch) -> None:
    """Too few nodes are heard, and the job goes on as if its processes were kept."""

    def wait(_phase: Choosing, _event: Undecided, job: Job, now_s: float) -> Next:
        replaced = do(attempts.replace_lost, everybody=False, new_world=True)
        return Pausing(now_s), (replaced, do(send, Order.PAUSE))

    put(patch, recovery.TABLE, choosing.wait, wait)


def kept_as_if_restarted(patch: Patch) -> None:
    """Processes are kept, and the phase that follows is that of a restart."""

    def pause(_phase: Choosing, _event: Kept, _job: Job, now_s: float) -> Next:
        return Restarting(now_s), (do(send, Order.PAUSE),)

    put(patch, recovery.TABLE, choosing.pause, pause)


def a_world_that_fails_is_waited_for(patch: Patch) -> None:
    """A world that cannot be built has no end."""
    put(patch, recovery.TABLE, building.fail_world, ignore)


def late_ranks_waited_for(patch: Patch) -> None:
    """A rank that never pauses is never fenced."""
    put(patch, recovery.TABLE, building.fence_late, ignore)


MUTATIONS = [
    incarnation_ignored,
    torn_donor,
    same_generation,
    old_pause_counts,
    early_release,
    no_waiting_for_death,
    older_directive_obeyed,
    budget_unlimited,
    stepped_is_clean,
    one_set_for_all,
    all_adopt,
    nobody_adopts,
    a_lost_set_is_done_without,
    set_forgotten_with_the_process,
    released_but_thought_inside,
    quorum_ignored,
    evicted_but_alive,
    never_grows,
    two_places_for_one,
    absent_ranks_expected,
    resumed_before_restored,
    resuming_without_end,
    strayed_for_ever,
    losses_after_the_end_forgotten,
    nothing_looked_at_again,
    undecided_for_ever,
    decided_by_too_few,
    kept_as_if_restarted,
    a_world_that_fails_is_waited_for,
    late_ranks_waited_for,
]


FIRST: dict[Callable[[Patch], None], int] = {
    stepped_is_clean: 1069,
    all_adopt: 601,
    nobody_adopts: 601,
    a_lost_set_is_done_without: 269,
    set_forgotten_with_the_process: 1622,
    never_grows: 236,
    absent_ranks_expected: 504,
    decided_by_too_few: 1692,
    late_ranks_waited_for: 287,
}
"""Those that few seeds find begin where one does, for the sake of time."""


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_broken_core_is_found(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    first = FIRST.get(mutate, 0)
    found = next((seed for seed in range(first, first + SEEDS) if simulate(seed).breach), None)
    assert found is not None, f"{mutate.__doc__} Not found within {SEEDS} seeds."
    print(f"seed {found}: {simulate(found).breach}")
