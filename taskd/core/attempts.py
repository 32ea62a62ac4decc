"""The attempts to bring a job through one fault: begun, paid for, planned, and ended.

Rules:

1. Every attempt to build a world takes a new generation. A loss while one is being built joins the failing set, and
   the job goes back to PAUSING.
2. A strategy has failed for a fault when it has failed `max_attempts` times: a world was not built in time, or one of
   its new processes was lost. The loss of a survivor is the machine's fault and not the strategy's.
3. It has failed at once, and nothing more is charged, if a process ended by itself before the world had committed a
   step, and nobody was ended by others: the script cannot go on in that world, and may well from its beginning.
4. Every attempt that fails leaves its reason.
"""

from dataclasses import dataclass

from taskd.core.budget import EARLY_S, EXIT_CODE, Budget, Fault
from taskd.core.jobstate import JobState
from taskd.core.phases import AskCluster, Note, Phase, Recovered, Setback, Stopped
from taskd.core.policy import Strategy
from taskd.core.ranks import plan_restore
from taskd.core.record import FaultRecord, tell
from taskd.core.strategy import KEEPING, Decision, choose, may_stay, strategy_name
from taskd.wire.messages import Order, Stage, Transfer, WorldPlan
from taskd.wire.text import line


@dataclass(slots=True)
class Attempts(JobState):
    """The steps of which the course of a job is made."""

    # ---- what is done

    def _begin(self, causes: dict[int, str]) -> None:
        self._forget()
        self.record = FaultRecord(self._now_s, self.step, causes=causes, fault=self.faults)
        if self._charge(list(causes)):
            self._attempt(new_world=True)

    def _forget(self) -> None:
        self._undecided = False
        self._tried.clear()
        self._asked.clear()
        self._failures = 0

    def _rearrange(self, strategy: Strategy, reason: str, causes: dict[int, str], *, restart: bool = False) -> None:
        """Form another world although nothing has failed: nothing is charged, and no committed step is lost.

        With `restart` all start anew, since they cannot be paused: torchrun does no better when a node comes.
        """
        self._forget()
        self.record = record = FaultRecord(self._now_s, self.step, causes=causes)
        record.strategy, record.restart, record.reason, record.attempts = strategy, restart, reason, 1
        self.world.generation += 1
        record.begin_attempt(self.world.generation)
        self._replace(everybody=restart, new_world=True)
        if restart:
            self._rendezvous = self.world.rendezvous()
            self._enter(Phase.RESTARTING)
            self._order(Order.RUN)
            return
        self._enter(Phase.PAUSING)
        self._order(Order.PAUSE, reason=reason, at_commit=True)
        self._patient = True

    def hurry(self) -> None:
        """Nothing has failed, and a step was waited for: free those that cannot come to its end any more."""
        limits, survivors = self.policy.deadlines, [view for view in self.world.ranks.values() if not view.joins]
        out = [view for view in survivors if view.at(self.world.generation) is Stage.PAUSED]
        if out and self._first_out_s is None:
            self._first_out_s = self._now_s
        skewed = self._first_out_s is not None and self._now_s - self._first_out_s >= limits.skew_s
        if len(out) == len(survivors):
            self._patient = False
        elif skewed or self._now_s - self._since_s >= limits.commit_s:
            self._order(Order.PAUSE, reason=self._need_record().reason)

    def _charge(self, ranks: list[int]) -> bool:
        if self._free:
            self._free = False
            self._out.append(Note("no restart is spent: the hang is not proven"))
            return True
        causes, budget = self._need_record().causes, self.budget or Budget()
        charge = budget.charge([self._fault(rank, causes.get(rank, "")) for rank in ranks], now_s=self._now_s)
        if not charge.granted:
            self._stop(charge.reason, 1)
            return False
        if charge.anew:
            self._tried |= dict.fromkeys(KEEPING, charge.anew)
        self._out.append(Note(charge.reason))
        return True

    def _fail(self, why: str, *, at_once: bool = False) -> None:
        """The attempt under way has failed. `at_once`: its strategy is not tried again."""
        record = self._need_record()
        name = strategy_name(record.strategy, record.restart)
        record.setbacks.append(f"attempt {record.attempts} ({name}) failed: {why}")
        self._out.append(Setback(record, record.setbacks[-1], why))
        self._failures += 1
        if at_once or self._failures >= self._failures_allowed(record):
            self._tried[record.strategy, record.restart] = "it has failed for this fault"
            self._failures = 0

    def _fault(self, rank: int, cause: str) -> Fault:
        if not self._failed_to_start(rank):
            return Fault(rank, self.step, cause)
        status = self.world.ranks[rank].known
        raised = status is not None and not status.kind and ": " in cause.partition(" (")[0]
        return Fault(-1, -1, cause, early=True, raised=raised)

    def _failed_to_start(self, rank: int) -> bool:
        """The process ended by itself, soon after its start, before any step was committed."""
        young = self._now_s - self.world.ranks[rank].since_s < EARLY_S
        return young and self.step < 0 and self._cause(rank).startswith(EXIT_CODE)

    def _attempt(self, *, new_world: bool, no_donor: bool = False) -> None:
        record = self._need_record()
        if self.world.usable() and self.world.blames_node():
            self._tried[Strategy.RECOVER_IN_PLACE, False] = "the process says that its node is at fault"
        if self.world.vacant and not self.has_quorum():
            decision = Decision(Strategy.RECOVER, False, "too few nodes are heard to go on without the others")
            self._undecided = True
        else:
            self._undecided = False
            decision = choose(self.world.situation(no_donor=no_donor), self.policy, self._tried)
        record.strategy, record.restart, record.reason = decision.strategy, decision.restart, decision.reason
        if decision.strategy is Strategy.EXIT:
            self._stop(f"{tell(record.causes)}; no strategy is left: {decision.reason}", 1)
            return
        new_world = new_world or decision.strategy in (Strategy.ELASTIC_TRAINING, Strategy.DUMP)  # fewer ranks
        record.attempts += new_world or decision.restart
        self.world.generation += new_world or decision.restart
        record.begin_attempt(self.world.generation)
        self._reshape(decision.strategy)
        if decision.restart and self.policy.node_count > 1:
            self._rendezvous = self.world.rendezvous()
        if not self._undecided:
            self._replace(everybody=decision.restart, new_world=new_world)
        self._enter(Phase.RESTARTING if decision.restart else Phase.PAUSING)
        self._order(Order.RUN if decision.restart else Order.PAUSE)

    def _failures_allowed(self, record: FaultRecord) -> int:
        """Failures after which a strategy is given up: 1 for a new process on its node, if another node waits."""
        in_place = (record.strategy, record.restart) == (Strategy.RECOVER_IN_PLACE, False)
        elsewhere = Strategy.RECOVER in self.policy.allowed and self.world.situation(no_donor=False).candidates > 0
        return 1 if in_place and elsewhere else self.policy.max_attempts

    def _reshape(self, strategy: Strategy) -> None:
        """Which nodes and ranks take part in the next world."""
        world = self.world
        situation = world.situation(no_donor=False)
        stay = situation.unreachable and may_stay(self.policy, self._tried, restart=self._need_record().restart)
        lost = situation.unreachable if stay else (*situation.lost, *situation.unreachable)
        failing = {world.ranks[rank].node_rank for rank in lost}
        match strategy:
            case Strategy.RECOVER:
                for place in failing - world.dead_nodes:
                    world.excluded.add(world.holders[place])
                    world.dead_nodes.add(place)
                    world.demote(place)
                    world.vacated.add(place)
                if self._need_record().restart:
                    for place in world.vacant:  # nobody else starts processes of the world that is to come
                        world.vacate(place)
                        world.vacated.add(place)
                self.fill()
            case Strategy.ELASTIC_TRAINING:
                for place in failing:
                    if place not in world.dead_nodes:
                        world.excluded.add(world.holders[place])
                    world.remove(world.on_node(place))
                    world.vacate(place)
            case Strategy.DUMP:
                world.remove({*situation.lost, *situation.unreachable})
            case _:
                pass

    def fill(self) -> bool:
        """Give vacant places to nodes that wait for one, and ask the cluster for the others; whether any was given."""
        given = False
        if not self.has_quorum():
            return given
        for place in self.world.vacant:
            agent_id = self.world.candidate_for(place)
            if agent_id is not None:
                self.give(place, agent_id)
                given = True
            elif place not in self._asked:
                self._asked[place] = self._now_s
                self.world.wanted.add(place)
                self._out.append(AskCluster(place, tell(self._need_record().causes)))
        return given

    def has_quorum(self) -> bool:
        """Whether enough nodes of the present world are heard to decide about the others."""
        return self.world.has_quorum(self.world.places, self._now_s, self.policy.membership)

    def agree(self) -> None:
        """The present world has come about."""
        self.world.agreed = {place: self.world.holders[place] for place in self.world.places}

    def give(self, place: int, agent_id: str) -> None:
        """A place, and new processes for its ranks, to another node."""
        host = self.world.candidates[agent_id].status.host or agent_id
        self.world.assign(place, agent_id)
        joins = self.record is None or not self.record.restart
        for rank in self.world.on_node(place):
            self.world.replace(rank, self._now_s, joins=joins)
        self._out.append(Note(f"node {place} is now {host}"))

    def _replace(self, *, everybody: bool, new_world: bool) -> None:
        for rank, view in self.world.ranks.items():
            if view.node_rank in self.world.dead_nodes and not everybody:
                continue
            if everybody or view.gone:
                self.world.replace(rank, self._now_s, joins=not everybody)
            elif new_world and not view.starting:
                view.since_s = self._now_s
        if everybody:
            self.step = -1

    def plan_world(self) -> None:
        """Every rank has paused: have them build the next world, as soon as enough nodes know of it."""
        record = self._need_record()
        membership, generation = self.policy.membership, self.world.generation
        self._unknown = not self.world.is_known(self.term, generation, self._now_s, membership)
        if self._unknown:
            known = self.world.echoes(self.term, generation, self._now_s, membership)
            self._echoes = {status.agent_id for status in known}
            return
        restore = plan_restore(self.world.held())
        if restore is None or self.world.refused():
            self._attempt(new_world=True, no_donor=restore is None)
            return
        host, members = self.world.store_host(), sorted(self.world.ranks)
        at = {rank: index for index, rank in enumerate(members)}
        record.planned_s, record.target_step = self._now_s, restore.target_step
        plan = WorldPlan(
            generation=self.world.generation,
            world_size=len(members),
            store_host=host.store_host,
            store_port=host.store_port,
            store_key=host.store_key,
            target_step=restore.target_step,
            adopt=tuple(at[rank] for rank in restore.adopt),
            transfers=tuple(
                Transfer(donor=at[transfer.donor], receivers=tuple(at[rank] for rank in transfer.receivers))
                for transfer in restore.transfers
            ),
            timeout_s=self.policy.deadlines.join_s,
            members=() if members == list(range(len(members))) else tuple(members),
            replicas=self.policy.world_size,
            dump=line(tell(record.causes)) if record.strategy is Strategy.DUMP else "",
            dump_to=self.policy.dump_to if record.strategy is Strategy.DUMP else "",
        )
        self._enter(Phase.JOINING)
        self._order(Order.JOIN, plan)

    def _succeed(self) -> None:
        record = self._need_record()
        record.close(self._now_s, self.world.ranks)
        self.record = None
        self.agree()
        for view in self.world.ranks.values():
            view.joins = False
        if self.budget is not None and record.restart:
            self.budget.restarted()
        elif self.budget is not None:
            self.budget.progressed(self.world.common_step())
        self._enter(Phase.RUNNING)
        self._order(Order.RUN)
        self._out.append(Recovered(record))

    def _stop(self, reason: str, exit_code: int) -> None:
        self._enter(Phase.STOPPED)
        self._order(Order.STOP, reason=reason, exit_code=exit_code)
        self._out.append(Stopped(reason, exit_code, self.record))
        self.record = None
