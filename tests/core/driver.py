"""Drives a real `Recovery` as the agents of a small job would, one report at a time."""

from taskd.core.policy import Deadlines, Policy, Strategy
from taskd.core.recovery import Action, Phase, Publish, Recovered, Recovery, Stopped
from taskd.wire.messages import Condition, Directive, NodeStatus, Order, RankStatus, Stage

DEADLINES = Deadlines(confirm_s=2.0, pause_s=10.0, replace_s=60.0, join_s=20.0, resume_s=30.0, merge_s=1.0)


class Job:
    """A manager's core with `nodes` agents of `per_node` ranks each. Time passes only by `wait`."""

    def __init__(
        self,
        nodes: int = 1,
        per_node: int = 2,
        allowed: tuple[Strategy, ...] = tuple(Strategy),
        max_restarts: int | None = None,
        sequence: int = 0,
    ) -> None:
        policy = Policy(
            job_id="job",
            node_count=nodes,
            ranks_per_node=per_node,
            allowed=allowed,
            max_restarts=max_restarts,
            deadlines=DEADLINES,
        )
        self.core = Recovery(policy, sequence=sequence)
        self.per_node = per_node
        self.now_s = 100.0
        self.actions: list[Action] = []
        self.statuses = {
            rank: RankStatus(rank=rank, incarnation=0, generation=0, stage=Stage.STARTING, pid=10 + rank)
            for rank in range(nodes * per_node)
        }
        self.nodes = nodes
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
        return self._take(self.core.hear(self.status(node, leaving=leaving), self.now_s))

    def status(self, node: int, *, leaving: bool = False) -> NodeStatus:
        """What the node's agent would report now."""
        self._sequence += 1
        ranks = range(node * self.per_node, (node + 1) * self.per_node)
        return NodeStatus(
            job_id="job",
            node_rank=node,
            agent_id=f"agent {node}",
            sequence=self._sequence,
            node_count=self.nodes,
            ranks=tuple(self.statuses[rank] for rank in ranks),
            store_host=f"node{node}",
            store_port=29500,
            standbys=1,
            max_restarts=3,
            generation=max(self.generation, *(status.generation for status in self.statuses.values())),
            leaving=leaving,
        )

    def say(
        self, rank: int, stage: Stage, *, step: int = 5, condition: Condition = Condition.CLEAN, cause: str = ""
    ) -> None:
        """The rank's wanted process reaches a stage in the newest generation, and its agent reports it."""
        directive = self.core.directive
        wanted = directive.ranks[rank].incarnation if directive is not None else 0
        self.statuses[rank] = RankStatus(
            rank=rank,
            incarnation=wanted,
            generation=self.generation,
            stage=stage,
            step=step,
            condition=condition,
            pid=10 + rank + 100 * wanted,
            cause=cause,
            at_s=self.now_s + self._sequence,
        )
        self.send(rank // self.per_node)

    def all(self, stage: Stage, *, step: int = 5, condition: Condition = Condition.CLEAN) -> None:
        """Every rank says so, one after the other."""
        for rank in self.statuses:
            self.say(rank, stage, step=step, condition=condition)

    def kill(self, rank: int, cause: str = "signal 9 (SIGKILL)") -> None:
        """The rank's process dies."""
        self.say(rank, Stage.DEAD, cause=cause)

    def wait(self, length_s: float) -> list[Action]:
        """Time passes, and the agents are heard meanwhile."""
        self.now_s += length_s
        for node in range(self.nodes):
            self.send(node)
        return self._take(self.core.tick(self.now_s))

    # ---- whole stretches

    def paused(self, newcomers: tuple[int, ...] = (0,)) -> "Job":
        """Newcomers are empty, all others clean: the plan is out."""
        for rank in self.statuses:
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
    def successes(self) -> list[Recovered]:
        return [action for action in self.actions if isinstance(action, Recovered)]

    @property
    def stopped(self) -> Stopped:
        """How the job ended."""
        return next(action for action in self.actions if isinstance(action, Stopped))

    def _take(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        return actions
