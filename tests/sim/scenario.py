"""What a seed stands for: the job, its weather, and the faults that strike it."""

from dataclasses import dataclass, replace
from random import Random

from taskd.core.phases import Phase
from taskd.core.policy import Deadlines, Membership, Policy, Strategy

DEADLINES = Deadlines(confirm_s=2.0, pause_s=15.0, replace_s=40.0, join_s=15.0, resume_s=30.0, merge_s=1.0)
MEMBERSHIP = Membership(heartbeat_s=0.5, suspect_s=3.0, dead_s=10.0)
STRATEGIES = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
LONGEST_S = 1500.0
"""A job that has neither finished nor stopped by then hangs."""


@dataclass(frozen=True)
class Script:
    """What the ranks run."""

    cooperative: bool  # it has a resilient function
    bounds: tuple[int, ...]  # the step at which each resilient function returns
    step_s: float
    setup_s: float
    between_s: float  # the script's own code after each resilient function
    checkpoint_every: int  # 0: it writes none


@dataclass(frozen=True)
class Weather:
    """How the network between agents and manager behaves."""

    drop: float
    duplicate: float
    delay_s: float
    late: float
    late_s: float
    deaf: float
    """Chance that a rank in a collective does not notice the death of a peer."""


@dataclass(frozen=True)
class Fault:
    """One fault. It strikes `delay_s` after the job has entered `phase`, or after its start if that is None."""

    kind: str
    phase: Phase | None
    delay_s: float
    victim: str
    count: int = 1
    length_s: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """All that a seed decides, but for the draws made on the way."""

    seed: int
    policy: Policy
    script: Script
    weather: Weather
    faults: tuple[Fault, ...]
    lag_s: tuple[float, ...]  # per node: an agent is so slow
    standbys: int
    start_max_restarts: int

    @property
    def setup_s(self) -> float:
        """Roughly when training begins."""
        return 0.6 + 1.5 * self.script.setup_s

    @property
    def training_s(self) -> float:
        """Roughly how long it takes without a fault."""
        return self.script.bounds[-1] * self.script.step_s * 1.2


PHASES = (None, None, Phase.STRAYED, Phase.PAUSING, Phase.JOINING, Phase.RESUMING, Phase.FINISHING, Phase.RESTARTING)
VICTIMS = ("any", "any", "newcomer", "donor", "first")
KINDS = (*("kill",) * 9, "hang", "hang", "freeze", "stray", "stray", "tear", "leave", "burst", "burst", "manager")


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = Random(seed)
    nodes = rng.randint(1, 4)
    per_node = rng.randint(1 if nodes > 1 else 2, max(2, 8 // nodes))
    script = _script(rng)
    policy = Policy(
        job_id="sim",
        node_count=nodes,
        ranks_per_node=per_node,
        allowed=STRATEGIES if rng.random() < 0.92 else rng.choice([STRATEGIES[1:], STRATEGIES[::2], STRATEGIES[2:]]),
        max_restarts=None if rng.random() < 0.93 else rng.randint(0, 3),
        deadlines=DEADLINES,
        membership=MEMBERSHIP,
    )
    scenario = Scenario(
        seed=seed,
        policy=policy,
        script=script,
        weather=_weather(rng),
        faults=(),
        lag_s=tuple(rng.choice([0.0, 0.0, 0.0, 0.05, 1.0]) for _ in range(nodes)),
        standbys=rng.randint(0, 2),
        start_max_restarts=rng.choice([3, *(32767,) * 9]),
    )
    faults = tuple(_fault(rng, scenario, first=n == 0) for n in range(rng.choice([0, 1, 2, 3, 4, 4])))
    if rng.random() < 0.04:
        faults += (
            Fault(rng.choice(["node", "term"]), None, rng.uniform(0, scenario.setup_s + scenario.training_s), "any"),
        )
    return replace(scenario, faults=faults)


def _script(rng: Random) -> Script:
    steps = rng.randint(6, 30)
    calls = rng.choice([1, 1, 1, 3])
    return Script(
        cooperative=rng.random() < 0.88,
        bounds=tuple(steps * (call + 1) // calls for call in range(calls)),
        step_s=rng.choice([0.03, 0.1, 0.4]),
        setup_s=rng.choice([0.1, 0.3, 3.0]),
        between_s=rng.choice([0.001, 0.1, 3.0]),
        checkpoint_every=rng.choice([0, 1, 4]),
    )


def _weather(rng: Random) -> Weather:
    if rng.random() < 0.3:
        return Weather(0.0, 0.0, 0.002, 0.0, 0.0, deaf=rng.choice([0.0, 0.3]))
    return Weather(
        drop=rng.choice([0.0, 0.1, 0.3]),
        duplicate=rng.choice([0.0, 0.2]),
        delay_s=rng.choice([0.002, 0.05, 0.3]),
        late=rng.choice([0.0, 0.1]),
        late_s=2.0,
        deaf=rng.choice([0.0, 0.3, 1.0]),
    )


def _fault(rng: Random, scenario: Scenario, *, first: bool) -> Fault:
    phase = None if first else rng.choice(PHASES)
    if phase is not None:
        delay_s = rng.choice([0.0, 0.01, 0.1, 0.5, 5.0]) * rng.random()
    elif rng.random() < 0.9:
        delay_s = scenario.setup_s + rng.uniform(0.0, scenario.training_s)
    else:
        delay_s = rng.uniform(0.0, scenario.setup_s)
    # A manager that takes over between two resilient functions cannot tell who is in which: one known limit.
    kinds = KINDS if len(scenario.script.bounds) == 1 else KINDS[:-1]
    return Fault(
        kind=rng.choice(kinds),
        phase=phase,
        delay_s=delay_s,
        victim=rng.choice(VICTIMS),
        count=rng.choice([1, 1, 1, 2, 99]),
        length_s=rng.uniform(0.5, 5.0),
    )
