"""Scenario of a seed: the job, its network conditions, and its faults."""

from dataclasses import dataclass, replace
from random import Random

from taskd.core.policy import BudgetPolicy, Deadlines, Membership, Policy, Strategy, StrategyPolicy, Tempo
from taskd.core.recovery import Phase
from taskd.wire.messages import Stage

WAIT_NODE_S = 60.0
DEADLINES = Deadlines(
    wait_node_s=WAIT_NODE_S,
    confirm_s=2.0,
    pause_s=15.0,
    replace_s=40.0,
    join_s=15.0,
    resume_s=30.0,
    takeover_s=10.0,
    merge_s=1.0,
)
MEMBERSHIP = Membership(heartbeat_s=0.5, suspect_s=1.5, dead_s=10.0)
TEMPO = Tempo(first_s=25.0, phase_s=60.0, few_steps=2, settled_steps=5)
"""Patience of short jobs: rhythms are known after a few steps."""
STRATEGIES = tuple(Strategy)
IN_PLACE = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
LONGEST_S = 1200.0
"""Limit of virtual time. A job that has neither finished nor stopped by then hangs."""


@dataclass(frozen=True)
class Script:
    """Script that the ranks run."""

    cooperative: bool  # it has a resilient function
    bounds: tuple[int, ...]  # the step at which each resilient function returns
    step_s: float
    setup_s: float
    between_s: float  # the script's own code after each resilient function
    checkpoint_every: int  # 0: no checkpoints


@dataclass(frozen=True)
class Weather:
    """Behaviour of the network between agents and manager."""

    drop: float
    duplicate: float
    delay_s: float
    late: float
    late_s: float
    deaf: float
    """Probability that a rank in a collective does not notice the death of a peer."""


@dataclass(frozen=True)
class Fault:
    """One fault. It strikes `delay_s` after the job has entered `phase`, or after its start if `phase` is None.

    If `exactly`, phases that resemble `phase` do not count. With a `stage`, it waits until a process has reached it.
    """

    kind: str
    phase: Phase | None
    delay_s: float
    victim: str
    count: int = 1
    length_s: float = 0.0
    exactly: bool = False
    stage: Stage | None = None


@dataclass(frozen=True)
class Scenario:
    """All decisions of a seed, except the draws made during the run."""

    seed: int
    policy: Policy
    script: Script
    weather: Weather
    faults: tuple[Fault, ...]
    lag_s: tuple[float, ...]  # for each node: delay of its agent
    standbys: int
    spares: int  # nodes that wait for a place from the start
    delivery_s: float | None  # delay of the cluster until it gives a node; None: it has none
    manager_apart: bool  # the manager is on a machine of its own, not on the first node's
    start_max_restarts: int
    replica_sets: int = 1
    backup_every: int = 0  # steps between two copies of the state; 0: no copies
    saves: bool = False  # its checkpoints are taskd's own
    dump_s: float = 2.0  # upper limit for a rank's part of a checkpoint
    dawdles: bool = False  # processes pause briefly after each collective
    warms_up: bool = False  # the script commits a step of its own outside the resilient functions
    manager_timeout_s: float | None = None  # wait of an agent for a manager that does not answer; None: for ever

    @property
    def setup_s(self) -> float:
        """Approximate start of training, in seconds."""
        return 0.6 + 1.5 * self.script.setup_s

    @property
    def training_s(self) -> float:
        """Approximate duration of training without a fault, in seconds."""
        return self.script.bounds[-1] * self.script.step_s * 1.2

    @property
    def relieved(self) -> bool:
        """True if a node always comes in time for a lost place."""
        return self.delivery_s is not None and self.delivery_s < WAIT_NODE_S / 2


PHASES = (None, None, Phase.STRAYED, Phase.PAUSING, Phase.JOINING, Phase.RESUMING, Phase.FINISHING, Phase.RESTARTING)
VICTIMS = ("any", "any", "newcomer", "donor", "first")
KINDS = (*("kill",) * 9, "hang", "hang", "freeze", "stray", "stray", "tear", "leave", "burst", "burst")
NODE_KINDS = ("node", "node", "node", "agent", "agent", "partition", "partition", "drain", "drain")
MANAGER_KINDS = ("manager", "usurp", "both")
TWO_SIDED = ("split", "split")


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = Random(seed)
    nodes = rng.randint(1, 4) if rng.random() < 0.98 else rng.randint(5, 64)
    per_node = rng.randint(1 if nodes > 1 else 2, max(2, 8 // nodes))
    script = _script(rng)
    on_nodes = rng.random() < 0.6
    policy = Policy(
        job_id="sim",
        node_count=nodes,
        ranks_per_node=per_node,
        strategies=StrategyPolicy(
            allowed=_allowed(rng, all_six=on_nodes),
            min_nodes=rng.choice([1, 1, max(1, nodes - 1)]),
            dump_to=b"/shelf" if rng.random() < 0.7 else b"",
        ),
        budget=BudgetPolicy(max_restarts=None if rng.random() < 0.93 else rng.randint(0, 3)),
        deadlines=DEADLINES,
        membership=MEMBERSHIP,
        tempo=TEMPO,
        recover_hangs=seed % 10 > 0,
    )
    scenario = Scenario(
        seed=seed,
        policy=policy,
        script=script,
        weather=_weather(rng),
        faults=(),
        lag_s=tuple(rng.choice([0.0, 0.0, 0.0, 0.05, 1.0]) for _ in range(nodes)),
        standbys=rng.randint(0, 2),
        spares=rng.choice([0, 0, 1, 2]) if on_nodes else 0,
        delivery_s=rng.choice([None, 1.0, 10.0, 50.0, 100.0]) if on_nodes else None,
        manager_apart=rng.random() < 0.5,
        start_max_restarts=rng.choice([3, *(32767,) * 9]),
    )
    count = rng.choice([0, 1, 1, 2, 2, 3, 4, 5, 6, 8])
    faults = tuple(_fault(rng, scenario, first=n == 0, on_nodes=on_nodes) for n in range(count))
    if rng.random() < 0.04:
        faults += (
            Fault(rng.choice(["node", "term"]), None, rng.uniform(0, scenario.setup_s + scenario.training_s), "any"),
        )
    sets = _replica_sets(seed, policy.world_size)
    return replace(
        scenario, faults=faults, replica_sets=sets, backup_every=_backup_every(seed, sets), saves=_saves(seed)
    )


def _replica_sets(seed: int, ranks: int) -> int:
    """Return the number of replica sets. Three of ten jobs have more than one, up to one for each rank."""
    rng = Random(f"replicas {seed}")
    return rng.randint(2, ranks) if rng.random() < 0.3 and ranks > 1 else 1


def _backup_every(seed: int, sets: int) -> int:
    """Return the steps between copies. Half of the jobs with several sets copy their states, and some of the others."""
    rng = Random(f"copies {seed}")
    return rng.randint(1, 8) if rng.random() < (0.5 if sets > 1 else 0.05) else 0


def _saves(seed: int) -> bool:
    """Return whether checkpoints are taskd's own, as in a fifth of the jobs."""
    return Random(f"saves {seed}").random() < 0.2


def sociable(seed: int) -> Scenario:
    """Return a job whose set-up works only if all ranks start together. It loses some ranks now and then."""
    rng = Random(seed)
    scenario = draw(seed)
    kills = [
        Fault("kill", None, scenario.setup_s + rng.uniform(0.0, 20.0), "any", rng.randint(1, 2))
        for _ in range(rng.randint(1, 3))
    ]
    return replace(
        scenario,
        policy=replace(
            scenario.policy,
            node_count=1,
            strategies=replace(scenario.policy.strategies, allowed=IN_PLACE),
            budget=BudgetPolicy(max_restarts=len(kills)),
        ),
        script=Script(True, (40,), step_s=0.5, setup_s=0.3, between_s=0.1, checkpoint_every=4),
        weather=replace(scenario.weather, drop=0.0, deaf=0.0, late=0.0),
        faults=(Fault("alone", None, 0.0, "any"), *kills),
        lag_s=(0.0,),
        spares=0,
        delivery_s=None,
        start_max_restarts=32767,
        replica_sets=1,
    )


def divided(seed: int, *, cooperative: bool = True) -> Scenario:
    """Return a long job whose network is cut repeatedly. Each cut gets a new manager on the side without one."""
    rng = Random(seed)
    nodes = rng.randint(2, 5)
    faults = [Fault("split", None, at_s + rng.uniform(0.0, 5.0), "any", 1, rng.uniform(5.0, 60.0)) for at_s in (3, 40)]
    others = rng.sample(range(2, 60), rng.randint(0, 3))
    faults += [Fault(rng.choice(["node", "agent", "kill", "drain"]), None, float(at_s), "any") for at_s in others]
    scenario = draw(seed)
    return replace(
        scenario,
        policy=replace(
            scenario.policy,
            node_count=nodes,
            ranks_per_node=1,
            strategies=replace(
                scenario.policy.strategies,
                allowed=rng.choice([STRATEGIES, (Strategy.RECOVER, Strategy.ELASTIC_TRAINING, Strategy.EXIT)]),
                min_nodes=1,
            ),
            deadlines=replace(DEADLINES, wait_node_s=rng.choice([5.0, WAIT_NODE_S])),
            budget=BudgetPolicy(),
        ),
        script=Script(cooperative, (200,), step_s=1.5, setup_s=0.3, between_s=0.1, checkpoint_every=4),
        faults=tuple(faults),
        lag_s=(0.0,) * nodes,
        spares=rng.randint(0, 2),
        delivery_s=rng.choice([None, 10.0]),
        start_max_restarts=32767,
    )


def _allowed(rng: Random, *, all_six: bool) -> tuple[Strategy, ...]:
    if not all_six:
        return IN_PLACE if rng.random() < 0.8 else rng.choice([IN_PLACE[1:], IN_PLACE[::2], IN_PLACE[2:]])
    if rng.random() < 0.6:
        return STRATEGIES
    return tuple(strategy for strategy in STRATEGIES if rng.random() < 0.7)


def _script(rng: Random) -> Script:
    steps = rng.randint(6, 30)
    calls = rng.choice([1, 1, 1, 3])
    return Script(
        cooperative=rng.random() < 0.88,
        bounds=tuple(steps * (call + 1) // calls for call in range(calls)),
        step_s=rng.choice([0.03, 0.03, 0.1, 0.1, 0.4, 0.4, 1.5]),
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


def _fault(rng: Random, scenario: Scenario, *, first: bool, on_nodes: bool) -> Fault:
    phase = None if first else rng.choice(PHASES)
    if phase is not None:
        delay_s = rng.choice([0.0, 0.01, 0.1, 0.5, 5.0]) * rng.random()
    elif rng.random() < 0.9:
        delay_s = scenario.setup_s + rng.uniform(0.0, scenario.training_s)
    else:
        delay_s = rng.uniform(0.0, scenario.setup_s)
    # A manager that takes over between two resilient functions cannot know which rank is in which: a known limit.
    kinds = KINDS + (MANAGER_KINDS if len(scenario.script.bounds) == 1 else ())
    if on_nodes:
        kinds += NODE_KINDS + (TWO_SIDED if len(scenario.script.bounds) == 1 and scenario.policy.node_count > 1 else ())
    return Fault(
        kind=rng.choice(kinds),
        phase=phase,
        delay_s=delay_s,
        victim=rng.choice(VICTIMS),
        count=rng.choice([1, 1, 1, 2, 99]),
        length_s=rng.uniform(0.5, 5.0) if rng.random() < 0.7 else rng.uniform(5.0, 100.0),
    )
