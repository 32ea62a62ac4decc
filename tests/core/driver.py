"""Drives a real `Recovery` as the agents of a small job would, one report at a time."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.policy import Deadlines, Policy, Strategy
from taskd.core.recovery import Action, Diagnosed, JobEnded, Phase, Publish, Recovered, Recovery
from taskd.wire.kinds import NOBODY, JobRank, NodeRank
from taskd.wire.messages import (
    Condition,
    Directive,
    Ledger,
    NodeStatus,
    Order,
    Progress,
    RankSpan,
    RankStatus,
    Refuses,
    Stage,
)
from taskd.wire.state import MeshRow, StateCopy

STEP_S = 0.1
DEADLINES = Deadlines(confirm_s=2.0, pause_s=10.0, replace_s=60.0, join_s=20.0, resume_s=30.0, merge_s=1.0)


def status_of(cause: str) -> int | None:
    """The status of a process that has ended so, as Python's subprocess has it."""
    found = re.match(r"(exit code|signal) (\d+)", cause)
    return None if found is None else int(found[2]) * (-1 if found[1] == "signal" else 1)


def policy_of(nodes: int, per_node: int, **given: Any) -> Policy:
    """The policy of a job. A field of what may be done, how often, or how long, is given by its own name."""
    policy = Policy("job", nodes, per_node, deadlines=DEADLINES)
    for name in ("strategies", "budget", "deadlines"):
        part = getattr(policy, name)
        own = {one.name: given.pop(one.name) for one in dataclasses.fields(part) if one.name in given}
        given[name] = dataclasses.replace(part, **own)
    return dataclasses.replace(policy, **given)


class Job:
    """A manager's core with `nodes` agents of `per_node` ranks each. Time passes only by `wait`.

    `more` are further fields of the policy and of its parts. A place's reports come from the agent that the manager
    says holds it.
    """

    def __init__(
        self,
        nodes: int = 1,
        per_node: int = 2,
        allowed: tuple[Strategy, ...] = tuple(Strategy),
        max_restarts: int | None = None,
        sequence: int = 0,
        **more: Any,
    ) -> None:
        self.core = Recovery(
            policy_of(nodes, per_node, allowed=allowed, max_restarts=max_restarts, **more), sequence=sequence
        )
        self.per_node = per_node
        self.now_s = 100.0
        self.actions: list[Action] = []
        self.statuses = {
            rank: RankStatus(rank=JobRank(rank), incarnation=0, generation=0, stage=Stage.STARTING, pid=10 + rank)
            for rank in range(nodes * per_node)
        }
        self.nodes = nodes
        self.replicas: dict[int, str] = {}
        self.rows: dict[int, MeshRow] = {}
        self.copies: dict[int, tuple[StateCopy, ...]] | None = None
        self.saved: dict[int, int] = {}
        """By the rank that can read them, where copies are made at all."""
        """Keys of the ranks' replica sets."""
        self.silent: set[str] = set()
        """Agents that nothing is heard of."""
        self.spares: dict[str, int] = {}
        self.progress: Progress | None = None
        """What every agent says of its ranks' newest step."""
        self.owns_s: dict[int, float] = {}
        """What each rank needs itself for a step, of `STEP_S` with all waiting. Nothing is said of the others."""
        self.cores = 64
        self.least = 0
        """MIN of torchrun's `--nnodes=MIN:MAX`."""
        self.terms: dict[int, int] = {}
        """Of the managers that had processes started, where it was another than the present one."""
        self.ledger = Ledger()
        self._sequence = 0

    # ---- what the agents do

    def up(self) -> "Job":
        """Every rank trains, in generation 0, and has committed step 5."""
        for node in range(self.nodes):
            self.send(node)
        self.all(Stage.TRAINING, step=0, condition=Condition.CLEAN)
        self.all(Stage.COMMITTED, step=5, condition=Condition.CLEAN)
        assert self.core.phase is Phase.RUNNING
        return self

    def send(self, node: int, *, leaving: bool = False) -> list[Action]:
        """The node's agent reports."""
        return self.hear(self.status(node, leaving=leaving))

    def hear(self, status: NodeStatus) -> list[Action]:
        """This report comes in."""
        return self._take(self.core.hear(status, self.now_s))

    def holder(self, node: int) -> str:
        """The agent that reports for a place."""
        return self.core.world.nodes.holders.get(NodeRank(node), f"agent {node}")

    def spare(self, agent_id: str = "spare", *, wants: int = -1, leaving: bool = False) -> list[Action]:
        """An agent without a place reports."""
        known = agent_id in self.spares
        wants = self.spares.setdefault(agent_id, wants)
        self._sequence += 1
        status = self._report(agent_id, -1, (), leaving=leaving, wants=wants)
        return self.hear(status if known else replace(status, ledger=Ledger()))  # nobody has led it yet

    def silence(self, *nodes: int) -> None:
        """Nothing more is heard of the agents of these places, until they are dead."""
        self.silent |= {self.holder(node) for node in nodes}
        for _ in range(3):
            self.wait(4.0)

    def status(self, node: int, *, leaving: bool = False) -> NodeStatus:
        """What the node's agent would report now. One that is `leaving` has killed its ranks."""
        self._sequence += 1
        ranks = range(node * self.per_node, (node + 1) * self.per_node)
        if leaving:
            for rank in ranks:
                if self.statuses[rank].stage is not Stage.EXITED:
                    self.statuses[rank] = replace(self.statuses[rank], stage=Stage.DEAD, cause="signal 15 (SIGTERM)")
        return self._report(self.holder(node), node, tuple(self.statuses[rank] for rank in ranks), leaving=leaving)

    def _report(
        self, agent_id: str, node: int, ranks: tuple[RankStatus, ...], *, leaving: bool, wants: int = -1
    ) -> NodeStatus:
        return NodeStatus(
            job_id="job",
            node_rank=NodeRank(node),
            agent_id=agent_id,
            sequence=self._sequence,
            node_count=self.nodes,
            ranks=ranks,
            store_host=agent_id.replace("agent ", "node"),
            store_port=29500,
            store_key=f"key of {agent_id}",
            standbys=1,
            max_restarts=3,
            generation=max(self.generation, *(status.generation for status in self.statuses.values())),
            leaving=leaving,
            host=agent_id.replace("agent ", "node"),
            wants=NodeRank(wants),
            min_nodes=self.least,
            ledger=self.ledger,
            progress=self.progress,
            cores=self.cores,
            spans=self._spans(ranks),
        )

    def _spans(self, ranks: tuple[RankStatus, ...]) -> tuple[RankSpan, ...]:
        step = self.progress.step if self.progress is not None else -1
        return tuple(
            RankSpan(rank=one.rank, step=step, steps=1, own_s=own_s, waited_s=STEP_S - own_s)
            for one in ranks
            if (own_s := self.owns_s.get(one.rank)) is not None
        )

    def say(
        self,
        rank: int,
        stage: Stage,
        *,
        step: int = 5,
        condition: Condition = Condition.CLEAN,
        cause: str = "",
        kind: str = "",
        refuses: Refuses | None = None,
        distrusts: JobRank = NOBODY,
        warm: bool = False,
    ) -> None:
        """The rank's wanted process reaches a stage in the newest generation, and its agent reports it."""
        directive = self.core.directive
        wanted = next((order.incarnation for order in directive.ranks if order.rank == rank), 0) if directive else 0
        self.statuses[rank] = RankStatus(
            rank=JobRank(rank),
            incarnation=wanted,
            generation=self.generation,
            stage=stage,
            step=step,
            condition=condition,
            pid=10 + rank + 100 * wanted,
            warm=warm,
            cause=cause,
            error=cause.partition(": ")[2] if stage is Stage.DEAD else cause,
            status=status_of(cause) if stage is Stage.DEAD else None,
            raised=": " in cause,
            kind=kind,
            no_rebuild=refuses.no_rebuild if refuses else "",
            no_newcomer=refuses.no_newcomer if refuses else "",
            anew=refuses.anew if refuses else "",
            term=self.terms.get(rank, directive.ledger.term if directive else 0),
            at_s=self.now_s + self._sequence,
            replicas="" if stage is Stage.STARTING else self.replicas.get(rank, ""),
            row=None if stage is Stage.STARTING else self.rows.get(rank),
            distrusts=distrusts,
            backs_up=self.copies is not None and stage is not Stage.STARTING,
            elsewhere=self.copies is not None and stage is not Stage.STARTING and self.nodes > 1,
            copies=(self.copies or {}).get(rank, ()) if stage is Stage.PAUSED else (),
            saved=self.saved.get(rank, -1),
        )
        self.send(rank // self.per_node)

    def all(self, stage: Stage, *, step: int = 5, condition: Condition = Condition.CLEAN) -> None:
        """Every rank says so, one after the other."""
        for rank in sorted(self.core.world.ranks):
            self.say(rank, stage, step=step, condition=condition)

    def kill(
        self, rank: int, cause: str = "signal 9 (SIGKILL)", *, step: int = 5, kind: str = "", warm: bool = False
    ) -> None:
        """The rank's process dies."""
        self.say(rank, Stage.DEAD, cause=cause, step=step, kind=kind, warm=warm)

    def wait(self, length_s: float) -> list[Action]:
        """Time passes, and the agents are heard meanwhile."""
        self.now_s += length_s
        for node in range(self.nodes):
            if self.holder(node) not in self.silent:
                self.send(node)
        for agent_id in self.spares:
            if agent_id not in self.core.world.nodes.holders.values() and agent_id not in self.silent:
                self.spare(agent_id)
        return self._take(self.core.tick(self.now_s))

    def train(self, steps: int, step_s: float = STEP_S) -> "Job":
        """So many steps are committed, each of this length, and the agents are heard after each."""
        first = self.progress.step + 1 if self.progress is not None else 6
        for step in range(first, first + steps):
            self.progress = Progress(step=step, age_s=0.0)
            self.wait(step_s)
        return self

    def silent_for(self, length_s: float, beat_s: float = 0.25) -> list[Action]:
        """Nothing is committed for so long; the agents are heard."""
        out: list[Action] = []
        assert self.progress is not None
        step, begun_s = self.progress.step, self.now_s - self.progress.age_s
        end_s = self.now_s + length_s
        while self.now_s < end_s:
            self.progress = Progress(step=step, age_s=min(self.now_s + beat_s, end_s) - begun_s)
            out += self.wait(min(beat_s, end_s - self.now_s))
        return out

    def silent_until_asked(self, limit_s: float) -> float:
        """Nothing is committed until the manager asks why; how long that was from here on."""
        begun_s = self.now_s
        while self.phase is Phase.RUNNING and self.now_s - begun_s < limit_s:
            self.silent_for(0.25)
        return self.now_s - begun_s

    def hear_evidence(self, node: int, evidence: Mapping[int, Evidence], *, asked: bool = True) -> list[Action]:
        """The node's agent reports."""
        probe = self.directive.probe if asked else 0
        of_rank = {JobRank(rank): known for rank, known in evidence.items()}
        return self._take(self.core.hear_evidence(self.holder(node), probe, of_rank, self.now_s))

    # ---- whole stretches

    def paused(self, newcomers: tuple[int, ...] = (0,)) -> "Job":
        """Newcomers are empty, all others clean: the plan is out."""
        for rank in sorted(self.core.world.ranks):
            if rank in newcomers:
                self.say(rank, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
            else:
                self.say(rank, Stage.PAUSED)
        return self

    def recovered(self) -> "Job":
        """The world is built and one more step committed."""
        for stage in (Stage.JOINED, Stage.RESTORED):
            self.all(stage)
        self.all(Stage.COMMITTED, step=6)
        return self

    # ---- what came out

    @property
    def generation(self) -> int:
        return self.core.world.generation

    @property
    def phase(self) -> Phase:
        return self.core.phase

    def at(self, phase: Phase) -> bool:
        """The job stands in this phase."""
        return self.phase is phase

    @property
    def directive(self) -> Directive:
        """The newest that was published."""
        published = [action.directive for action in self.actions if isinstance(action, Publish)]
        return published[-1]

    @property
    def order(self) -> Order:
        return self.directive.order

    @property
    def incarnations(self) -> list[int]:
        return [order.incarnation for order in self.directive.ranks]

    @property
    def diagnoses(self) -> list[Diagnosed]:
        return [action for action in self.actions if isinstance(action, Diagnosed)]

    @property
    def successes(self) -> list[Recovered]:
        return [action for action in self.actions if isinstance(action, Recovered)]

    @property
    def stopped(self) -> JobEnded:
        """How the job ended."""
        return next(action for action in self.actions if isinstance(action, JobEnded))

    @property
    def members(self) -> list[int]:
        """The ranks of the present world."""
        return [order.rank for order in self.directive.ranks]

    def did(self, kind: type[Action]) -> list[Any]:
        """All actions of one kind."""
        return [action for action in self.actions if isinstance(action, kind)]

    def _take(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        for action in actions:
            if isinstance(action, Publish) and action.directive.order is not Order.FORM:
                self.ledger = action.directive.ledger  # an agent gives back what it was told last
        return actions
