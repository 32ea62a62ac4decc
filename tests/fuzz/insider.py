"""A node of the job that lies, against all that decides: `python -m tests.fuzz.insider SEED COUNT`.

Rules:

1. Three nodes do as they are told. The fourth holds a place, and reports and reports anything well-typed of it.
2. What comes of it may cost the job restarts, and its end; it is decided without an error. What cannot be in the phase
   raises `TransitionError`: its table is there for that.
3. Time is virtual. A job that has ended is followed by the next.
"""

import json
import random
import sys
import time
import traceback
from collections import Counter
from typing import Any, Final

import msgspec

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.policy import BudgetPolicy, Policy, Strategy, StrategyPolicy
from taskd.core.recovery import Action, Phase, Recovery
from taskd.errors import TransitionError
from taskd.runtime.links.identity import agent_of
from taskd.runtime.manager.crowd import own_evidence, unfit
from taskd.wire import codec
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, EvidenceReport, FromAgent, NodeStatus, Order, RankStatus, Stage
from tests.fuzz.wellformed import Known, Maker
from tests.runtime.test_strange_reports import STATUS

NODES: Final = 4
PER_NODE: Final = 2
LIAR: Final = "the liar's proof"
_LIFE: Final = 300
"""Messages to one job at most."""
_STAGES: Final = {
    Order.FORM: Stage.STARTING,
    Order.RUN: Stage.COMMITTED,
    Order.PAUSE: Stage.PAUSED,
    Order.JOIN: Stage.COMMITTED,
    Order.RELEASE: Stage.FINISHED,
    Order.STOP: Stage.EXITED,
}


class Job:
    """One job, whose last place a liar holds."""

    def __init__(self, dice: random.Random, number: int) -> None:
        self.dice = dice
        self.now_s = 1000.0
        strategies = (tuple(Strategy), (Strategy.RECOVER_IN_PLACE, Strategy.ELASTIC_TRAINING, Strategy.EXIT))
        policy = Policy(
            "job",
            NODES,
            PER_NODE,
            strategies=StrategyPolicy(dice.choice(strategies)),
            budget=BudgetPolicy(max_restarts=50),
        )
        self.core = Recovery(policy, sequence=number * 1_000_000)
        self.proofs = [f"proof {place}" for place in range(NODES - 1)] + ["a spare's"]
        self.sequence = 0
        self.maker = Maker(FromAgent, dice, self._known)
        first = (rank_status(rank, Stage.TRAINING, 0, 0, 3, 0) for rank in self._ranks(NODES - 1))
        self._hear(self._report(LIAR, NODES - 1, tuple(first)))
        self.turn()

    def _ranks(self, place: int) -> range:
        return range(place * PER_NODE, (place + 1) * PER_NODE)

    def _report(self, proof: str, place: int, ranks: tuple[RankStatus, ...]) -> NodeStatus:
        self.sequence += 1
        directive = self.core.directive
        return msgspec.structs.replace(
            STATUS,
            node_rank=place,
            agent_id=agent_of(proof),
            proof=proof,
            sequence=self.sequence,
            node_count=NODES,
            ranks=ranks,
            max_restarts=50,
            generation=directive.generation if directive is not None else 0,
            ledger=directive.ledger if directive is not None and directive.order is not Order.FORM else STATUS.ledger,
        )

    def turn(self) -> None:
        """Some time passes, and the honest do as they are told."""
        self.now_s += self.dice.choice((0.01, 0.1, 0.1, 0.5, 0.5, 5.0))
        for place, proof in enumerate(self.proofs):
            directive = self.core.directive
            mine = place if place < NODES - 1 else -1
            ranks: tuple[RankStatus, ...] = ()
            if directive is not None and directive.order is not Order.FORM:
                mine = next((one.node_rank for one in directive.places if one.agent_id == agent_of(proof)), -1)
                own = (one for one in directive.ranks if mine >= 0 and one.rank in self._ranks(mine))
                stage, generation, term = _STAGES[directive.order], directive.generation, directive.ledger.term
                ranks = tuple(rank_status(one.rank, stage, one.incarnation, generation, 3, term) for one in own)
            elif mine >= 0:
                ranks = tuple(rank_status(rank, Stage.TRAINING, 0, 0, 3, 0) for rank in self._ranks(mine))
            self._hear(self._report(proof, mine, ranks))
        self._did(self.core.tick(self.now_s))

    def _hear(self, status: NodeStatus) -> None:
        if unfit(status, self.core) is None:
            self._did(self.core.hear(status, self.now_s))

    def _did(self, actions: list[Action]) -> None:
        for action in actions:
            directive = getattr(action, "directive", None)
            if directive is not None:
                codec.decode_from_manager(codec.encode(directive))  # an agent takes it

    def lie(self) -> str:
        """One message: what became of it."""
        kind = self.dice.choice(("NodeStatus", "NodeStatus", "EvidenceReport"))
        own = agent_of(LIAR)
        held = self.core.world.nodes.place_of(own)
        place = {"node_rank": held} if held is not None and self.dice.random() < 0.9 else {}
        self.sequence += 1
        said: dict[str, Any] = {"proof": LIAR, "agent_id": own, "job_id": "job", "node_count": NODES, **place}
        if kind == "NodeStatus" and self.dice.random() < 0.9:
            said["leaving"] = False
        try:
            message = codec.decode_from_agent(self.maker.frame(kind, **said))
        except codec.BadFrameError:
            return "content"
        if isinstance(message, NodeStatus):
            if unfit(message, self.core) is not None:
                return "unfit"
            self._did(self.core.hear(message, self.now_s))
        elif isinstance(message, EvidenceReport):
            found, _ = own_evidence(message, self.core)
            try:
                evidence = {rank: msgspec.msgpack.decode(raw, type=Evidence) for rank, raw in (found or {}).items()}
            except msgspec.MsgspecError:
                return "evidence_report"
            self._did(self.core.hear_evidence(own, message.probe, evidence, self.now_s))
        return "accepted"

    def _known(self) -> Known:
        core, own = self.core, [6, 7]
        generation = core.world.generation
        wanted = [view.incarnation for rank, view in core.world.ranks.items() if rank in own] or [0]
        return {
            "node_rank": [NODES - 1],
            "rank": own * 8 + [0, 5, 8],
            "members": [*range(9)],
            "node": [3, 3, 0, 4, 100],
            "places": [0, 1, 2, 3],
            "incarnation": wanted * 4 + [wanted[0] + 1, -1, 0],
            "generation": [generation] * 8 + [max(0, generation - 1), generation + 1],
            "term": [core.term] * 8 + [0, core.term - 1],
            "sequence": [self.sequence],
            "probe": [core.watch.probe, 0],
            "step": [-1, 3, 3, 4, 5],
            "min_nodes": [0],
            "kind": ["", "", "fatal", "node", "x"],
            "cause": ["", "signal 9 (SIGKILL)", "exit code 1", "exit code 1 (E: x)", "signal 11 (SIGSEGV)"],
            "age_s": [0.0, 0.1, 100.0],
            **{name: [0] for name in ("ranks", "ledger", "ending", "standing", "process", "progress", "spans")},
        }


def rank_status(rank: int, stage: Stage, incarnation: int, generation: int, step: int, term: int) -> RankStatus:
    """Of a process in good order."""
    return RankStatus(
        rank=JobRank(rank),
        incarnation=incarnation,
        generation=generation,
        stage=stage,
        step=step,
        condition=Condition.CLEAN,
        pid=100 + rank,
        term=term,
    )


def run(seed: int, count: int) -> tuple[Counter[str], dict[str, str]]:
    """Tell so many lies: what became of them, and each kind of error with its trace."""
    dice, counts, failures = random.Random(seed), Counter[str](), dict[str, str]()
    job, said = Job(dice, 1), 0
    for number in range(count):
        said += 1
        try:
            if said > _LIFE or job.core.phase is Phase.STOPPED or job.core.superseded:
                counts["jobs"] += 1
                said, job = 0, Job(dice, counts["jobs"] + 1)
            counts[job.core.phase.value] += 1
            counts[job.lie()] += 1
            if dice.random() < 0.4:
                job.turn()
        except TransitionError:
            counts["transition"] += 1
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
            trace = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} in {trace.filename}:{trace.lineno}"
            counts["failures"] += 1
            failures.setdefault(where, f"seed {seed}, message {number}: {traceback.format_exc()}")
            said = _LIFE
    return counts, failures


if __name__ == "__main__":
    began_s = time.monotonic()
    told, wrong = run(int(sys.argv[1]), int(sys.argv[2]))
    print(*wrong.values(), sep="\n", file=sys.stderr)
    lasted_s = round(time.monotonic() - began_s, 1)
    print(json.dumps({**told, "seed": int(sys.argv[1]), "lasted_s": lasted_s, "kinds_of_error": sorted(wrong)}))
    sys.exit(bool(wrong))
