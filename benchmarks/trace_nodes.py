"""One node of the played job, and the clock of the play.

A node has one slot rank that stands for all of its GPUs: their processes start, pause and die together here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Directive, Ledger, NodeStatus, Order, RankStatus, Stage


class Clock:
    """Virtual time, and the scheduled actions in the order in which they are due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, at_s: float, act: Callable[..., object], *args: Any) -> None:
        """Schedule an action for this time."""
        self._count += 1
        heappush(self._due, (at_s, self._count, act, args))

    def run(self, until_s: float) -> None:
        """Perform all actions that are due before `until_s`."""
        while self._due and self._due[0][0] < until_s:
            self.now_s, _, act, args = heappop(self._due)
            act(*args)
        self.now_s = until_s


STATUSES = {"exit code 1": 1, "signal 6 (SIGABRT)": -6}
"""Exit status for each cause of a process's end, as Python's subprocess reports it."""


@dataclass(slots=True)
class Node:
    """State of a node, and the reports of its agent."""

    agent_id: str
    place: int = -1
    wanted: int = 0
    """Incarnation of the process that it has, or that it was ordered to start."""
    running: bool = False
    stage: Stage = Stage.STARTING
    generation: int = 0
    step: int = -1
    condition: Condition = Condition.EMPTY
    cause: str = ""
    warm: bool = True
    """True if a standby waits."""
    silent: bool = False
    """True if the agent is gone."""
    leaving: bool = False
    broken: bool = False
    """True if every process dies when it opens the device."""
    stuck: bool = False
    """True if the process cannot continue, and this is not detected yet."""
    hung: bool = False
    """True if the process does not even pause when ordered to."""

    def status(self, sequence: int, directive: Directive, node_count: int) -> NodeStatus:
        """Return the report of the node's agent, which has received the directive."""
        return NodeStatus(
            job_id="trace",
            node_rank=NodeRank(self.place),
            agent_id=self.agent_id,
            sequence=sequence,
            node_count=node_count,
            ranks=(self._rank(),) if self.place >= 0 else (),
            store_host=self.agent_id,
            store_port=29500,
            standbys=int(self.warm),
            max_restarts=32767,
            generation=directive.generation,
            ledger=Ledger() if directive.order is Order.FORM else directive.ledger,
            host=self.agent_id,
            leaving=self.leaving,
        )

    def _rank(self) -> RankStatus:
        return RankStatus(
            rank=JobRank(self.place),
            incarnation=self.wanted,
            generation=self.generation,
            stage=self.stage,
            step=self.step,
            condition=self.condition,
            cause=self.cause,
            status=STATUSES.get(self.cause),
        )

    def reach(self, stage: Stage, generation: int, *, step: int | None = None, cause: str = "") -> None:
        """Bring the node's process to a stage. With a step, its state is clean there."""
        self.stage, self.generation, self.cause = stage, generation, cause
        if step is not None:
            self.step, self.condition = step, Condition.CLEAN

    def start(self, incarnation: int, generation: int) -> None:
        """Order a new process. The one that ran before is fenced."""
        self.wanted, self.running, self.stage, self.generation = incarnation, False, Stage.STARTING, generation
        self.step, self.condition, self.cause = -1, Condition.EMPTY, ""
        self.stuck = self.hung = False
