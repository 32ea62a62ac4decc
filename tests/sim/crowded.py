"""Jobs with one event in the middle of another: a seed brings a job into a phase and strikes again in that phase.

The second fault waits for exactly that phase, or for a stage that a process has just reached. It strikes moments later.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from taskd.core.policy import BudgetPolicy, Strategy
from taskd.core.recovery import Phase
from taskd.wire.messages import Stage
from tests.sim.scenario import DEADLINES, STRATEGIES, WAIT_NODE_S, Fault, Scenario, Script, Weather, draw

Faults = tuple[Fault, ...]
Family = Callable[[Random, Scenario], Faults]
STRATEGIES_OF = (
    *(STRATEGIES,) * 4,
    (Strategy.DUMP, Strategy.EXIT),
    (Strategy.RETRY, Strategy.DUMP, Strategy.EXIT),
    (Strategy.RECOVER, Strategy.ELASTIC_TRAINING, Strategy.DUMP, Strategy.EXIT),
    (Strategy.RECOVER, Strategy.ELASTIC_TRAINING, Strategy.EXIT),
)
VICTIMS = ("any", "any", "newcomer", "donor", "first")
SECONDS = (
    *("kill", "kill", "leave", "hang", "stray", "refuse", "refuse", "accept", "unplug", "unplug"),
    *("term", "term", "node", "agent", "partition", "burst", "drain"),
)
OF_MANAGERS = ("manager", "usurp", "mute", "split")
MOMENTS = (Stage.FINISHED, Stage.JOINED, Stage.RESTORED, Stage.DUMPED, Stage.COMMITTED, Stage.PAUSED, Stage.RELEASED)
CROWDED = tuple(phase for phase in Phase if phase not in (Phase.FORMING, Phase.CHOOSING, Phase.RUNNING, Phase.STOPPED))


def crowded(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = Random(f"crowded {seed}")
    scenario = draw(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    nodes = rng.choice([2, 3, 4] if family in (unheard, undecided, isolated, restarted) else [1, 2, 2, 3, 3, 4, 5])
    allowed = rng.choice(STRATEGIES_OF)
    if family is rearranged:
        allowed = STRATEGIES  # a drain without any other fault is no reason to end a job
    elif family is dumping or (family in (hung_since, in_a_moment) and rng.random() < 0.5):
        allowed = DUMPS
    lasts = family in (unheard, undecided, overtaken, isolated, hung_since)
    calls = 1 if lasts or rng.random() < (0.4 if family is in_a_moment else 0.8) else 3
    steps = 30 if lasts else rng.choice([6, 12, 30])
    promptly = family in (overtaken, in_a_moment)
    wait_s = 3.0 if family is isolated else rng.choice([8.0, 8.0, WAIT_NODE_S, WAIT_NODE_S])  # longer than any burst
    scenario = replace(
        scenario,
        policy=replace(
            scenario.policy,
            node_count=nodes,
            ranks_per_node=rng.choice([2, 2 if family is hung_since else 1]) if nodes > 1 else rng.choice([2, 3]),
            strategies=replace(scenario.policy.strategies, allowed=allowed, min_nodes=1, dump_to=b"/shelf"),
            deadlines=replace(DEADLINES, wait_node_s=wait_s, takeover_s=rng.choice([1.0, 10.0])),
            budget=BudgetPolicy(max_restarts=None if calls == 1 or rng.random() < 0.5 else rng.randint(0, 2)),
            recover_hangs=True,
        ),
        script=Script(
            cooperative=rng.random() < 0.9,
            bounds=tuple(steps * (call + 1) // calls for call in range(calls)),
            step_s=0.4 if lasts else rng.choice([0.03, 0.1, 0.4, 1.5]),
            setup_s=rng.choice([0.1, 0.3, 3.0]),
            between_s=rng.choice([0.001, 0.1, 3.0, 3.0]),
            checkpoint_every=rng.choice([0, 1, 4]),
        ),
        weather=_weather(rng, family, scenario.weather),
        lag_s=tuple(0.0 if promptly else rng.choice([0.0, 0.0, 0.0, 0.05, 1.0]) for _ in range(nodes)),
        spares=rng.choice([0, 1, 2]),
        manager_apart=family is undecided or scenario.manager_apart,
        delivery_s=rng.choice([None, 1.0, 10.0]) if wait_s == WAIT_NODE_S else None,
        start_max_restarts=32767,
        replica_sets=1,
        dump_s=rng.choice([0.1, 2.0, 8.0]),
        dawdles=family in (in_a_moment, hung_since) or rng.random() < 0.5,
        warms_up=rng.random() < 0.3,
        manager_timeout_s=rng.choice([3.0, 15.0]) if rng.random() < 0.3 else None,
    )
    seconds = _seconds(rng, scenario) if family not in (isolated, hung_since) else ()
    return replace(scenario, faults=(*family(rng, scenario), *seconds))


def _weather(rng: Random, family: Family, usual: Weather) -> Weather:
    if family in (isolated, overtaken, in_a_moment):
        return Weather(0.0, 0.0, 0.002, 0.0, 0.0, deaf=1.0 if family is isolated else 0.0)
    if family is hung_since:
        return replace(usual, drop=0.0, deaf=1.0)
    return usual if rng.random() < 0.7 else replace(usual, drop=0.3, delay_s=0.3)


def _start(rng: Random, scenario: Scenario, kind: str, *, length_s: float = 0.0, count: int = 1) -> Fault:
    at_s = scenario.setup_s + rng.uniform(0.0, min(scenario.training_s, 6.0))
    return Fault(kind, None, at_s, rng.choice(VICTIMS), count, length_s)


def _in(rng: Random, phase: Phase, kind: str, delay_s: float = 0.0, length_s: float | None = None) -> Fault:
    """Return a fault in exactly this phase, within moments unless it has a delay."""
    length_s = _length(rng) if length_s is None else length_s
    delay_s = delay_s or rng.choice([0.0, 0.001, 0.01, 0.1, 0.5]) * rng.random()
    return Fault(kind, phase, delay_s, rng.choice(VICTIMS), rng.choice([1, 1, 1, 99]), length_s, exactly=True)


def _length(rng: Random) -> float:
    return rng.uniform(0.0, 1.0) if rng.random() < 0.4 else rng.uniform(1.0, 6.0) if rng.random() < 0.7 else 80.0


def _kinds(scenario: Scenario) -> tuple[str, ...]:
    # A manager that takes over between two resilient functions cannot know which rank is in which: a known limit.
    one = len(scenario.script.bounds) == 1
    return SECONDS + (OF_MANAGERS[: 4 if scenario.policy.node_count > 1 else 3] if one else ())


def _seconds(rng: Random, scenario: Scenario) -> Faults:
    """Return faults that strike in the middle of the others, in any phase."""
    kinds = _kinds(scenario)
    found = [_in(rng, rng.choice(CROWDED), rng.choice(kinds)) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.4:
        moment = rng.choice(MOMENTS)
        found.append(
            Fault(rng.choice(("kill", "unplug", *kinds)), None, rng.uniform(0.0, 0.01), "any", 1, 1.0, stage=moment)
        )
    return tuple(found)


# ---- ways into a phase


def anything(rng: Random, scenario: Scenario) -> Faults:
    """Let one process die, hang, or leave its function."""
    first = _start(rng, scenario, rng.choice(["kill", "kill", "hang", "stray", "leave"]))
    if len(scenario.script.bounds) > 1 or rng.random() < 0.7:
        return (first,)
    return (first, _start(rng, scenario, "both", length_s=1.0), _start(rng, scenario, "node"))


def unheard(rng: Random, scenario: Scenario) -> Faults:
    """Pause all, and let most nodes be silent when the next world is to be announced."""
    bursts = [_in(rng, Phase.PAUSING, "burst", rng.uniform(1.0, 4.0), 5.0) for _ in range(3)]
    kinds = ("refuse", "leave", "kill", "term", "node", *_kinds(scenario))
    second = replace(_in(rng, Phase.ANNOUNCING, rng.choice(kinds)), victim=rng.choice(["any", "newcomer", "newcomer"]))
    return (_start(rng, scenario, "kill"), *bursts, second)


def undecided(rng: Random, scenario: Scenario) -> Faults:
    """Cut the network so that the manager reaches too few nodes to decide about a loss."""
    cut = _start(rng, scenario, "partition", length_s=rng.uniform(12.0, 40.0))
    kill = replace(cut, kind="kill", delay_s=cut.delay_s + rng.uniform(2.0, 10.0))
    kinds = ("leave", "leave", "term", *_kinds(scenario))
    seconds = [_in(rng, Phase.AWAITING_QUORUM, rng.choice(kinds), rng.uniform(0.0, 5.0)) for _ in range(3)]
    return (cut, kill, *seconds)


def rearranged(rng: Random, scenario: Scenario) -> Faults:
    """Drain a node."""
    kinds = ("kill", "leave", "node", "agent", "term", "partition", "usurp", "stray")
    return (
        _start(rng, scenario, "drain"),
        _start(rng, scenario, "drain"),
        *(_in(rng, Phase.REARRANGING, rng.choice(kinds)) for _ in range(2)),
    )


def suspected(rng: Random, scenario: Scenario) -> Faults:
    """Stop the job's progress."""
    seconds = [_in(rng, Phase.SUSPECTING, rng.choice(_kinds(scenario))) for _ in range(2)]
    return (_start(rng, scenario, rng.choice(["hang", "freeze"])), *seconds)


def overtaken(rng: Random, scenario: Scenario) -> Faults:
    """Start a newer manager whose messages are lost once it knows of the job, while the older one continues."""
    usurp = _start(rng, scenario, "usurp", length_s=0.1)
    mutes = [replace(usurp, kind="mute", delay_s=usurp.delay_s + at_s, length_s=5.0) for at_s in (0.66, 5.0)]
    kinds = ("kill", "kill", "kill", "stray", "hang", "hang", "leave")
    others = [
        replace(usurp, kind=rng.choice(kinds), delay_s=usurp.delay_s + rng.uniform(0.9, 5.0), count=rng.choice([1, 99]))
        for _ in range(5)
    ]
    if rng.random() < 0.3:  # the older manager detects the hang sooner
        others = [replace(usurp, kind="hang", delay_s=usurp.delay_s + 1.2)]
    return (usurp, *mutes, *others)


def dumping(rng: Random, scenario: Scenario) -> Faults:
    """Have a checkpoint written, and lose the manager or a rank meanwhile."""
    kinds: tuple[str, ...] = ("kill", "leave", "term", "unplug", "burst", "burst")
    kinds += ("manager", "usurp", "manager") if len(scenario.script.bounds) == 1 else ()
    seconds = [
        _in(rng, rng.choice([Phase.JOINING, Phase.RESUMING]), rng.choice(kinds), rng.uniform(0.0, 2.0))
        for _ in range(2)
    ]
    return (_start(rng, scenario, "kill"), *seconds)


def isolated(rng: Random, scenario: Scenario) -> Faults:
    """Cut the network for so long that the manager gives up, whatever it does meanwhile."""
    if rng.random() < 0.5:
        phase = rng.choice([Phase.JOINING, Phase.RESUMING, Phase.REARRANGING, Phase.REARRANGING, Phase.SUSPECTING])
        first = {Phase.REARRANGING: "drain", Phase.SUSPECTING: "hang"}.get(phase, "kill")
        return (
            _start(rng, scenario, first),
            _start(rng, scenario, first),
            _in(rng, phase, "partition", length_s=80.0),
        )
    cut = _start(rng, scenario, "partition", length_s=80.0)
    second = replace(cut, kind=rng.choice(["hang", "kill"]), delay_s=cut.delay_s + rng.uniform(1.0, 6.0))
    return (cut, second) if rng.random() < 0.4 else (cut,)


def hung_since(rng: Random, scenario: Scenario) -> Faults:
    """Hang a rank while a world is built or a checkpoint written. Another manager takes over and asks for the cause."""
    moment = rng.choice([Stage.TRAINING, Stage.JOINED, Stage.RESTORED, Stage.DUMPED, Stage.DUMPED])
    faults = (
        _start(rng, scenario, "kill"),
        Fault("hang", None, 0.0001, "behind", 1, stage=moment),
        *(_in(rng, Phase.SUSPECTING, "refuse", delay_s) for delay_s in (0.002, 0.03)),
        *(_in(rng, Phase.STRAYED, "refuse", delay_s) for delay_s in (0.1, 0.5)),
    )
    faults = tuple(replace(fault, count=99) if fault.kind == "refuse" else fault for fault in faults)
    return (*faults, Fault("manager", None, rng.uniform(0.01, 0.3), "any", 1, rng.uniform(0.1, 1.0), stage=moment))


def restarted(rng: Random, scenario: Scenario) -> Faults:
    """Restart all, as a rank may request, with one node silent while processes of others leave their function again."""
    burst = _in(rng, Phase.RESTARTING, "burst", length_s=5.0)
    strays = [_in(rng, Phase.RESTARTING, "stray", rng.uniform(0.5, 5.0)) for _ in range(2)]
    first = replace(_start(rng, scenario, "kill"), count=99)
    asks = round(burst.delay_s * 1e6) % 3 == 0
    return (replace(first, kind="ask") if asks else first, burst, *strays)


def in_a_moment(rng: Random, scenario: Scenario) -> Faults:
    """End a process or its link just when another process has reached a stage."""
    stages = (Stage.DUMPED, *MOMENTS) if scenario.policy.strategies.allowed == DUMPS else MOMENTS
    moments = [
        Fault(
            rng.choice(["kill", "unplug"]),
            None,
            rng.uniform(0.0, 0.004),
            rng.choice(["any", "behind"]),
            1,
            1.0,
            stage=rng.choice(stages),
        )
        for _ in range(3)
    ]
    return (_start(rng, scenario, "kill"), *moments)


DUMPS = (Strategy.DUMP, Strategy.EXIT)
FAMILIES: tuple[Family, ...] = (
    anything,
    unheard,
    undecided,
    rearranged,
    suspected,
    overtaken,
    dumping,
    in_a_moment,
    isolated,
    hung_since,
    restarted,
)
