"""Copies of simulated states: how the ranks of a world write them together, and which copies each can read later.

Rules:

1. A round is one step of one world. A process that commits takes part if the previous round is known to be over;
   otherwise it skips the round. A round is whole when all have taken part. The simulation leaves out how ranks learn
   this: `tests.sharded` kills real ranks in the middle of it.
2. Copies of a rank lie on its own node and on its buddy's, two of each state. They are lost with the agent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskd.core.worker import WorkerState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, WorldPlan
from taskd.wire.state import StateCopy
from tests.sim.chain import chain
from tests.sim.thread import Meet, Thread

if TYPE_CHECKING:
    from tests.sim.nodes import Agent
    from tests.sim.process import Process
    from tests.sim.world import Sim


UNKNOWN = 1 << 30
Kept = tuple[int, int]
"""A state, and the resilient function that it belongs to."""


def saved(process: "Process") -> int:
    """Return the newest checkpoint that the job wrote while the process was in its resilient function, or -1."""
    newest, sim = process.sim.checkpoint, process.sim
    return newest if sim.scenario.saves and process.inside and newest > process.entered else -1


def load_saved(process: "Process", plan: WorldPlan) -> Thread:
    """Load the plan's checkpoint in all ranks. A newcomer also gets the number of the others' resilient function."""
    assert process.group is not None
    process.state, process.condition = None, Condition.TORN
    yield process.rng.uniform(0.01, 0.3)
    calls = yield Meet(process.group, "load", process.members, process.call)
    process.call = max(calls.values())
    process.step, process.state = plan.target_step, chain(plan.target_step, process.replicas)
    process.condition = Condition.CLEAN


class Shelf:
    """Copies on one node: for each reader and each rank whose state is copied, the states by step."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], dict[int, Kept]] = {}

    def keep(self, holder: int, of: int, step: int, state: Kept, kept: int) -> None:
        """Write a copy over the older one of two, but never over the copy of step `kept`."""
        held = self._held.setdefault((holder, of), {})
        held.pop(step, None)
        if len(held) == 2:
            del held[min(held, key=lambda known: (known == kept, known))]
        held[step] = state

    def known(self, holder: int) -> tuple[StateCopy, ...]:
        """Return the copies that a rank can read, in the form of a report."""
        found = [(of, step) for (reader, of), held in self._held.items() if reader == holder for step in held]
        return tuple(StateCopy(of=JobRank(of), step=step) for of, step in sorted(found))

    def read(self, holder: int, of: int, step: int) -> Kept:
        """Return the content of a copy."""
        return self._held[holder, of][step]

    def forget(self, holder: int, *, after: int = -1) -> None:
        """Delete all copies that a rank can read, or only those of steps after `after`."""
        for (reader, _), held in self._held.items():
            if reader == holder:
                for step in [step for step in held if step > after]:
                    del held[step]


@dataclass
class Round:
    """One step of one world. `done`: ranks that took part, or skipped the round."""

    step: int
    done: set[int] = field(default_factory=set)
    missed: bool = False


class Copies:
    """Copies of a whole job."""

    def __init__(self, sim: "Sim") -> None:
        self._sim = sim
        self._rounds: dict[tuple[int, int], Round] = {}
        self._open: dict[int, Round | None] = {}
        self.kept: dict[int, int] = {}
        """Newest step of which all ranks have copies, by generation."""
        self.whole = 0

    def committed(self, process: "Process") -> None:
        """Copy the state after a commit, if its step is due for a copy."""
        every, group = self._sim.scenario.backup_every, process.group
        if not every or process.step % every or group is None or process.state is None:
            return
        generation, step = group.generation, process.step
        one = self._rounds.setdefault((generation, step), Round(step))
        if self._open.get(generation) not in (None, one) or one.missed:
            one.missed = True
            self._did(generation, one, process)
            return
        self._open[generation] = one
        self._sim.clock.after(
            self._sim.rng.uniform(0.0, 0.3), self._write, process, generation, one, (process.state, process.call)
        )

    def _write(self, process: "Process", generation: int, one: Round, state: Kept) -> None:
        trains = process.alive and not process.frozen and process.worker.state is WorkerState.TRAINING
        if not trains or process.worker.generation != generation:
            return
        kept, rank = self.kept.get(generation, -1), process.rank
        process.agent.shelf.keep(rank, rank, one.step, state, kept)
        buddy = self._buddy(process)
        if buddy is not None:
            for agent in self._agents_of(process, buddy):
                agent.shelf.keep(buddy, rank, one.step, state, kept)
                break
            else:
                return
        self._did(generation, one, process)

    def _did(self, generation: int, one: Round, process: "Process") -> None:
        one.done.add(process.rank)
        if len(one.done) < len(process.members):
            return
        if not one.missed:
            self.kept[generation] = one.step
            self.whole += 1
        if self._open.get(generation) is one:
            self._open[generation] = None

    def _buddy(self, process: "Process") -> int | None:
        per_node = self._sim.policy.ranks_per_node
        places = sorted({rank // per_node for rank in process.members})
        at = places.index(process.rank // per_node)
        after = places[(at + 1) % len(places)]
        return None if len(places) == 1 else after * per_node + process.rank % per_node

    def _agents_of(self, process: "Process", rank: int) -> "Iterator[Agent]":
        """Yield the node on which a peer of this process lives, if it can be reached."""
        for agent in self._sim.agents:
            peer = agent.processes.get(rank)
            lives = peer is not None and peer.alive and peer.group is process.group and not agent.dead
            if lives and self._sim.network.connected(process.machine, agent.machine):
                yield agent
