"""Traces of simulated jobs and their faults. They follow from a seed, so they need not be stored.

A rank's own time is `BASE_S` times several factors. They are the cost of its work; its own constant (1 %; rank 0 has
2 % more, it writes logs); noise of 1 to 3 %, a part of which lasts for some steps; now and then 1.3 (garbage
collection, 1 of 100 steps) and 10 (1 of 500). Every 50th step all evaluate, every 100th all write a checkpoint and
rank 0 writes longer.

The noise is that of accelerators in healthy machines: there, steps differ by 1 % (arXiv:2605.17879, table of its
section on results). `noise` sets another one.

Work depends on `Family`. n tokens of a sequence cost n (1 + n / 12 h) with h = 4096, as in models of 7 B parameters.
taskd reads the size of a batch at the data loader, but not the lengths of the documents in it.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from taskd.core.stragglers.detector import Layout, Step
from taskd.wire.kinds import JobRank, NodeRank

BASE_S = 0.2
COMM_S = 0.03
DATA_S = 0.001
EVALUATE_EVERY, CHECKPOINT_EVERY = 50, 100
WIDTH = 12 * 4096
BUDGET = 32768
OVERHEAD = 0.1
"""Constant share of a usual step of a job with buckets. It does not grow with its sequences."""
BUCKETS = (512, 1024, 2048, 4096)
POOL = 3000


class Family(Enum):
    """Distribution of the ranks' work."""

    FIXED = "fixed length"
    PACKED = "documents packed to 32768 tokens, each of which attends to itself alone"
    PADDED = "one bucket for all ranks of a step, 8 sequences padded to their longest"
    MIXED = "each rank another bucket in each step"
    UNTOLD = "as MIXED, and the loader is no part of the training state: no size is known"


class Fault(Enum):
    """Fault of the job."""

    NONE = "none"
    RANK = "slow rank"
    NODE = "slow node"
    DATA = "slow data loader"
    LINK = "slow link"
    STAGES = "unequal pipeline"
    HEAVY = "one rank has more work"


@dataclass(frozen=True)
class Case:
    """A trace. `excess`: 0.1 for 10 % more; `onset`: first step with the fault."""

    family: Family
    ranks: int
    steps: int
    seed: int
    fault: Fault = Fault.NONE
    excess: float = 0.0
    onset: int = 0
    per_node: int = 8
    declared: bool = True
    noise: float = 0.0
    """Standard deviation of the noise; 0: drawn."""

    @property
    def layout(self) -> Layout:
        ranks = [JobRank(rank) for rank in range(self.ranks)]
        nodes = {rank: NodeRank(rank // self.per_node) for rank in ranks}
        stages = {rank: rank * 4 // self.ranks for rank in ranks}
        return Layout(nodes, stages if self.fault is Fault.STAGES and self.declared else {})

    @property
    def victims(self) -> tuple[int, ...]:
        """Ranks with the fault."""
        chosen = random.Random(f"victim {self.seed} {self.ranks}").randrange(self.ranks)
        match self.fault:
            case Fault.RANK | Fault.DATA | Fault.HEAVY:
                return (chosen,)
            case Fault.NODE:
                first = chosen // self.per_node * self.per_node
                return tuple(range(first, min(self.ranks, first + self.per_node)))
            case Fault.STAGES:
                return tuple(range(self.ranks * 3 // 4, self.ranks))
            case _:
                return ()


def _cost(tokens: float) -> float:
    return tokens * (1 + tokens / WIDTH)


@cache
def _packed() -> list[tuple[float, float]]:
    """Return tokens and cost of batches: documents of lognormal length, the last of each cut at the batch's limit."""
    chance = random.Random("packed")
    costs = []
    left = 0.0
    for _ in range(POOL):
        tokens = cost = 0.0
        while tokens < BUDGET:
            left = left or min(8192.0, max(16.0, chance.lognormvariate(math.log(600), 1.2)))
            taken = min(left, BUDGET - tokens)
            tokens, cost, left = tokens + taken, cost + _cost(taken), left - taken
        costs.append(cost)
    mean = sum(costs) / POOL
    return [(float(BUDGET), cost / mean) for cost in costs]


@cache
def _bucket(bound: int) -> list[tuple[float, float]]:
    """Return tokens and cost of batches of 8 sequences of one bucket, padded to the longest. `OVERHEAD` is constant."""
    chance = random.Random(f"bucket {bound}")
    usual = sum(8 * _cost(one * 0.94) for one in BUCKETS) / len(BUCKETS)
    longest = [max(chance.uniform(bound / 2, bound) for _ in range(8)) for _ in range(POOL)]
    return [(8 * one, OVERHEAD + (1 - OVERHEAD) * 8 * _cost(one) / usual) for one in longest]


def _works(family: Family, chance: random.Random, ranks: int) -> list[tuple[float, float]]:
    """Return tokens (0 if they are unknown to taskd) and cost of each rank in one step."""
    match family:
        case Family.FIXED:
            return [(float(BUDGET), 1.0)] * ranks
        case Family.PACKED:
            batches = _packed()
        case Family.PADDED:
            batches = _bucket(chance.choice(BUCKETS))
        case Family.MIXED | Family.UNTOLD:
            pools = [_bucket(bound) for bound in BUCKETS]
            drawn = [pools[int(chance.random() * 4)][int(chance.random() * POOL)] for _ in range(ranks)]
            return drawn if family is Family.MIXED else [(0.0, cost) for _, cost in drawn]
    return [batches[int(chance.random() * POOL)] for _ in range(ranks)]


def rows(case: Case) -> Iterator[list[Step]]:
    """Yield the trace, step by step."""
    chance = random.Random(f"{case.family.name} {case.ranks} {case.seed}")
    drawn = chance.uniform(0.01, 0.03)
    noise = case.noise or drawn
    constant = [math.exp(chance.gauss(0.0, 0.01) + 0.02 * (rank == 0)) for rank in range(case.ranks)]
    lasting = [0.0] * case.ranks
    victims = frozenset(case.victims)
    for step in range(case.steps):
        struck = case.fault is not Fault.NONE and step >= case.onset
        hit = victims if struck else frozenset()
        works = _works(case.family, chance, case.ranks)
        owns, data = [], []
        for rank, (_, usual) in enumerate(works):
            more = case.excess if case.fault is Fault.HEAVY and rank in hit else 0.0
            cost = usual + more * (usual - OVERHEAD)
            lasting[rank] = 0.7 * lasting[rank] + chance.gauss(0.0, 0.3 * noise * math.sqrt(1 - 0.49))
            own = cost * constant[rank] * math.exp(chance.gauss(0.0, 0.95 * noise) + lasting[rank])
            own *= _now_and_then(chance) * _slowed(case.fault, rank in hit, case.excess)
            owns.append(BASE_S * (own + _season(chance, step, rank)))
            loading = DATA_S * math.exp(chance.gauss(0.0, 0.5))
            data.append(loading + case.excess * BASE_S * (case.fault is Fault.DATA and rank in hit))
        comm = COMM_S * math.exp(chance.gauss(0.0, 0.1))
        comm += case.excess * (BASE_S + COMM_S) * (struck and case.fault is Fault.LINK)
        end_s = max(own + loading for own, loading in zip(owns, data, strict=True)) + comm
        heavier = 1 + case.excess if case.fault is Fault.HEAVY else 1.0
        yield [
            Step(JobRank(rank), step, own, end_s - own - loading, loading, tokens * (heavier if rank in hit else 1.0))
            for rank, ((tokens, _), own, loading) in enumerate(zip(works, owns, data, strict=True))
        ]


def _now_and_then(chance: random.Random) -> float:
    drawn = chance.random()
    return 10.0 if drawn < 1 / 500 else 1.3 if drawn < 1 / 500 + 1 / 100 else 1.0


def _slowed(fault: Fault, hit: bool, excess: float) -> float:
    return 1 + excess if hit and fault in (Fault.RANK, Fault.NODE, Fault.STAGES) else 1.0


def _season(chance: random.Random, step: int, rank: int) -> float:
    more = 0.0
    if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
        more += 5.0 * math.exp(chance.gauss(0.0, 0.1))
    if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
        more += 0.3 + 2.0 * (rank == 0)
    return more


def variation(family: Family, ranks: int = 64, steps: int = 400) -> float:
    """Return the deviation of the logarithm of the ranks' cost within a step."""
    chance = random.Random(f"variation {family.name}")
    squares = 0.0
    for _ in range(steps):
        logs = [math.log(cost) for _, cost in _works(family, chance, ranks)]
        mean = sum(logs) / ranks
        squares += sum((one - mean) ** 2 for one in logs) / (ranks - 1)
    return math.sqrt(squares / steps)
