"""Driver for tests of `Recovery`: plays the agents of a small job, one report at a time."""

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
    """Return the exit status of a process that ended for this cause, in the form of `subprocess`."""
    found = re.match(r"(exit code|signal) (\d+)", cause)
    return None if found is None else int(found[2]) * (-1 if found[1] == "signal" else 1)


def policy_of(nodes: int, per_node: int, **given: Any) -> Policy:
    """Return the policy of a job. Fields of its strategies, budget and deadlines are given by their own names."""
    policy = Policy("job", nodes, per_node, deadlines=DEADLINES)
    for name in ("strategies", "budget", "deadlines"):
        part = getattr(policy, name)
        own = {one.name: given.pop(one.name) for one in dataclasses.fields(part) if one.name in given}
        given[name] = dataclasses.replace(part, **own)
    return dataclasses.replace(policy, **given)


class Job:
    """Manager's core with `nodes` agents of `per_node` ranks each. Time passes only in `wait`.

    `more`: further fields of the policy and of its parts. The agent that holds a place for the manager sends the
    place's reports.
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
        """Keys of the ranks' replica sets."""
        self.rows: dict[int, MeshRow] = {}
        self.copies: dict[int, tuple[StateCopy, ...]] | None = None
        """Copies by the rank that can read them. None if the job makes no copies."""
        self.saved: dict[int, int] = {}
        """Newest checkpoint that each rank knows of."""
        self.silent: set[str] = set()
        """Agents whose reports do not arrive."""
        self.spares: dict[str, int] = {}
        self.progress: Progress | None = None
        """Newest step of the ranks, as every agent reports it."""
        self.owns_s: dict[int, float] = {}
        """Own time of each rank in a step of `STEP_S`, in seconds; the rest is waiting. Other ranks report none."""
        self.cores = 64
        self.least = 0
        """MIN of torchrun's `--nnodes=MIN:MAX`."""
        self.terms: dict[int, int] = {}
        """Terms of the managers that started ranks' processes, by rank, where that was not the present manager."""
        self.ledger = Ledger()
        self._sequence = 0

    # ---- the agents' activity

    def up(self) -> "Job":
        """Bring every rank into training, in generation 0, with step 5 committed."""
        for node in range(self.nodes):
            self.send(node)
        self.all(Stage.TRAINING, step=0, condition=Condition.CLEAN)
        self.all(Stage.COMMITTED, step=5, condition=Condition.CLEAN)
        assert self.core.phase is Phase.RUNNING
        return self

    def send(self, node: int, *, leaving: bool = False) -> list[Action]:
        """Send a report of the node's agent."""
        return self.hear(self.status(node, leaving=leaving))

    def hear(self, status: NodeStatus) -> list[Action]:
        """Let the manager receive this report."""
        return self._take(self.core.hear(status, self.now_s))

    def holder(self, node: int) -> str:
        """Return the agent that reports for a place."""
        return self.core.world.nodes.holders.get(NodeRank(node), f"agent {node}")

    def spare(self, agent_id: str = "spare", *, wants: int = -1, leaving: bool = False) -> list[Action]:
        """Send a report of an agent without a place."""
        known = agent_id in self.spares
        wants = self.spares.setdefault(agent_id, wants)
        self._sequence += 1
        status = self._report(agent_id, -1, (), leaving=leaving, wants=wants)
        return self.hear(status if known else replace(status, ledger=Ledger()))  # no manager has led it yet

    def silence(self, *nodes: int) -> None:
        """Drop all further reports of the agents of these places, until the manager counts them as dead."""
        self.silent |= {self.holder(node) for node in nodes}
        for _ in range(3):
            self.wait(4.0)

    def status(self, node: int, *, leaving: bool = False) -> NodeStatus:
        """Return the present report of the node's agent. An agent that is `leaving` has killed its ranks."""
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
        """Bring the rank's wanted process to a stage in the newest generation, and let its agent report it."""
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
        """Report this stage for every rank, one after the other."""
        for rank in sorted(self.core.world.ranks):
            self.say(rank, stage, step=step, condition=condition)

    def kill(
        self, rank: int, cause: str = "signal 9 (SIGKILL)", *, step: int = 5, kind: str = "", warm: bool = False
    ) -> None:
        """Let the rank's process die."""
        self.say(rank, Stage.DEAD, cause=cause, step=step, kind=kind, warm=warm)

    def wait(self, length_s: float) -> list[Action]:
        """Let time pass; the agents report meanwhile."""
        self.now_s += length_s
        for node in range(self.nodes):
            if self.holder(node) not in self.silent:
                self.send(node)
        for agent_id in self.spares:
            if agent_id not in self.core.world.nodes.holders.values() and agent_id not in self.silent:
                self.spare(agent_id)
        return self._take(self.core.tick(self.now_s))

    def train(self, steps: int, step_s: float = STEP_S) -> "Job":
        """Commit `steps` steps of `step_s` each; the agents report after each."""
        first = self.progress.step + 1 if self.progress is not None else 6
        for step in range(first, first + steps):
            self.progress = Progress(step=step, age_s=0.0)
            self.wait(step_s)
        return self

    def silent_for(self, length_s: float, beat_s: float = 0.25) -> list[Action]:
        """Let `length_s` pass without a commit; the agents report."""
        out: list[Action] = []
        assert self.progress is not None
        step, begun_s = self.progress.step, self.now_s - self.progress.age_s
        end_s = self.now_s + length_s
        while self.now_s < end_s:
            self.progress = Progress(step=step, age_s=min(self.now_s + beat_s, end_s) - begun_s)
            out += self.wait(min(beat_s, end_s - self.now_s))
        return out

    def silent_until_asked(self, limit_s: float) -> float:
        """Commit nothing until the manager asks for the reason. Return how long that took."""
        begun_s = self.now_s
        while self.phase is Phase.RUNNING and self.now_s - begun_s < limit_s:
            self.silent_for(0.25)
        return self.now_s - begun_s

    def hear_evidence(self, node: int, evidence: Mapping[int, Evidence], *, asked: bool = True) -> list[Action]:
        """Send evidence of the node's agent."""
        probe = self.directive.probe if asked else 0
        of_rank = {JobRank(rank): known for rank, known in evidence.items()}
        return self._take(self.core.hear_evidence(self.holder(node), probe, of_rank, self.now_s))

    # ---- whole stretches

    def paused(self, newcomers: tuple[int, ...] = (0,)) -> "Job":
        """Pause all ranks: newcomers are empty, all others clean. The plan is published then."""
        for rank in sorted(self.core.world.ranks):
            if rank in newcomers:
                self.say(rank, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
            else:
                self.say(rank, Stage.PAUSED)
        return self

    def recovered(self) -> "Job":
        """Build the world and commit one more step."""
        for stage in (Stage.JOINED, Stage.RESTORED):
            self.all(stage)
        self.all(Stage.COMMITTED, step=6)
        return self

    # ---- results

    @property
    def generation(self) -> int:
        return self.core.world.generation

    @property
    def phase(self) -> Phase:
        return self.core.phase

    def at(self, phase: Phase) -> bool:
        """Return whether the job is in this phase."""
        return self.phase is phase

    @property
    def directive(self) -> Directive:
        """Newest published directive."""
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
        """End of the job, with its reason."""
        return next(action for action in self.actions if isinstance(action, JobEnded))

    @property
    def members(self) -> list[int]:
        """Ranks of the present world."""
        return [order.rank for order in self.directive.ranks]

    def did(self, kind: type[Action]) -> list[Any]:
        """Return all actions of one kind."""
        return [action for action in self.actions if isinstance(action, kind)]

    def _take(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        for action in actions:
            if isinstance(action, Publish) and action.directive.order is not Order.FORM:
                self.ledger = action.directive.ledger  # an agent returns the ledger that it received last
        return actions
