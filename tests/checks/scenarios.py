"""The scenarios of the node check: the faults of nodes and links, and the results that they must have.

Rules:

1. A job has as many torchruns as places, each with `--network-check`. When one leaves, the player starts the same
   torchrun on a faultless node in its place. The job must then train to its end.
2. A fault exists before the first torchrun starts, and stays.
3. The manager's journal, the torchruns' output, and their exit statuses are judged.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd.core.nodecheck.probes import CHECK_NAME
from tests.faults.cgroups import slowed
from tests.ladder.job import LadderError, LadderJob
from tests.nodes import Node, Nodes

STEPS = 60
LONG_STEPS = 300
DOWN = "The node is down."
STRAGGLER = "The node is a straggler and exits."
MOST_ROUNDS = 5
"""Two for faulty nodes and one for a link. On a busy machine a healthy part may appear slow, and is tried again."""
Ill = Callable[[Nodes], Any]


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        places: nodes of the job.
        ill: the faults, as contexts.
        leaves: the text with which each node leaves, by its number.
        healths: health of each node that is not healthy, by its number.
        links: pairs of nodes whose link is reported.
        lost: a node that is killed while the job trains. The node in its place is checked, and no other one.
        dynamic: torchrun's nodes meet by c10d.
    """

    name: str
    places: int
    ill: tuple[Ill, ...] = ()
    leaves: tuple[tuple[int, str], ...] = ()
    healths: tuple[tuple[int, str], ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    options: tuple[str, ...] = ("--network-check",)
    lost: int | None = None
    dynamic: bool = False

    @property
    def newcomers(self) -> int:
        """Number of nodes that come in place of others."""
        return len(self.leaves) + (self.lost is not None)

    @property
    def steps(self) -> int:
        """Steps of the job, enough for the loss of a node before its end."""
        return STEPS if self.lost is None else LONG_STEPS


@contextmanager
def killed(nodes: Nodes, number: int) -> Iterator[None]:
    """Kill every check process of a node as soon as it is there."""
    stop = threading.Event()
    thread = threading.Thread(target=_kill_checks, args=(nodes[number], stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _kill_checks(node: Node, stop: threading.Event) -> None:
    while not stop.wait(0.005):  # there is no event for a new check process
        for outside in node.pids().values() if node.up else ():
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{outside}/comm").read_text().strip() == CHECK_NAME:
                    os.kill(outside, signal.SIGKILL)


@contextmanager
def throttled(nodes: Nodes, number: int) -> Iterator[tuple[int, Path]]:
    """Let all processes of a node share an eighth of a CPU."""
    with slowed(f"taskd-slow-{os.getpid()}-{number}", 0.125) as procs:
        yield number, procs


@contextmanager
def narrow(nodes: Nodes, number: int) -> Iterator[None]:
    """Send all packets of a node through a token bucket of 100 Mbit/s."""
    nodes[number].space.tc("qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 50ms")
    yield


@contextmanager
def cut(nodes: Nodes, one: int, other: int) -> Iterator[None]:
    """Part two nodes from each other. All others reach both."""
    nodes[one].space.ip(f"route add blackhole {nodes[other].address}/32")
    nodes[other].space.ip(f"route add blackhole {nodes[one].address}/32")
    yield


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("4 healthy nodes", 4),
    Scenario("2 healthy nodes", 2),
    Scenario("3 healthy nodes", 3),
    Scenario(
        "one faulty node of 4",
        4,
        (lambda nodes: killed(nodes, 2),),
        leaves=((2, DOWN),),
        healths=((2, "down"),),
    ),
    Scenario(
        "two faulty nodes of 4",
        4,
        (lambda nodes: killed(nodes, 1), lambda nodes: killed(nodes, 2)),
        leaves=((1, DOWN), (2, DOWN)),
        healths=((1, "down"), (2, "down")),
    ),
    Scenario(
        "one faulty node of 2",
        2,
        (lambda nodes: killed(nodes, 1),),
        leaves=((1, DOWN),),
        healths=((1, "down"),),
    ),
    Scenario(
        "one faulty node of 3",
        3,
        (lambda nodes: killed(nodes, 1),),
        leaves=((1, DOWN),),
        healths=((1, "down"),),
    ),
    Scenario(
        "slow CPU",
        4,
        (lambda nodes: throttled(nodes, 2),),
        leaves=((2, STRAGGLER),),
        healths=((2, "slow"),),
        options=("--network-check", "--exclude-straggler"),
    ),
    Scenario(
        "slow link of a node",
        4,
        (lambda nodes: narrow(nodes, 2),),
        leaves=((2, STRAGGLER),),
        healths=((2, "slow"),),
        options=("--network-check", "--exclude-straggler"),
    ),
    Scenario("cut link between two nodes", 4, (lambda nodes: cut(nodes, 2, 3),), ((3, "The link to"),), (), ((2, 3),)),
    Scenario(
        "one faulty node of 3, c10d",
        3,
        (lambda nodes: killed(nodes, 1),),
        leaves=((1, DOWN),),
        healths=((1, "down"),),
        dynamic=True,
    ),
    Scenario("a node is lost while the job trains", 3, lost=1),
    Scenario(
        "a faulty node comes in place of a lost one",
        3,
        (lambda nodes: killed(nodes, 3),),
        leaves=((3, DOWN),),
        healths=((3, "down"),),
        lost=1,
    ),
)


def perform(scenario: Scenario, folder: Path) -> tuple[LadderJob, list[str]]:
    """Play a scenario on nodes of its own. Return the job after its end, and the defects.

    Raises `NodesUnavailableError`.
    """
    with Nodes(scenario.places + scenario.newcomers) as nodes, ExitStack() as stack:
        confined = dict(filter(None, [stack.enter_context(ill(nodes)) for ill in scenario.ill]))
        asked = folder / "asked"
        env = {"TASKD_NODE_COMMAND": f"sh -c 'echo $TASKD_NODE_RANK >> {asked}'"}
        job = LadderJob(
            nodes,
            folder,
            places=scenario.places,
            steps=scenario.steps,
            options=scenario.options,
            dynamic=scenario.dynamic,
            env=env,
        )
        try:
            wrong = _play(scenario, job, asked, confined)
        except (LadderError, AssertionError, OSError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
    return job, wrong


def _play(scenario: Scenario, job: LadderJob, asked: Path, confined: Mapping[int, Path]) -> list[str]:
    """Play the job, and return the defects. `confined`: cgroups of nodes, by their number."""
    job.start_manager(job.nodes[0])
    for number in range(scenario.places):
        process = job.start_torchrun(job.nodes[number], number)
        if number in confined:
            confined[number].write_text(str(process.pid))  # its children are born in it
    if scenario.lost is not None:
        job.await_steps(10)
        job.nodes[scenario.lost].kill_all()
    for newcomer in range(scenario.newcomers):
        job.wait(lambda more=newcomer + 1: len(_wanted(asked)) >= more, "the call for a node")  # type: ignore[misc]
        job.start_torchrun(job.nodes[scenario.places + newcomer], int(_wanted(asked)[newcomer]))
    statuses = job.end()
    return judge(scenario, job, statuses)


def _wanted(asked: Path) -> list[str]:
    """Return the places for which nodes were requested."""
    return asked.read_text().split() if asked.exists() else []


def judge(scenario: Scenario, job: LadderJob, statuses: dict[int, int]) -> list[str]:
    """Return the defects of the job; an empty list if there are none."""
    wrong = []
    checks = job.named("node check")
    first = checks[0 if scenario.lost is None else 1]
    found = {name: told["health"] for name, told in first["nodes"].items() if told["health"] != "healthy"}
    wanted = {f"node{number}": health for number, health in scenario.healths}
    if found != wanted:
        wrong.append(f"nodes {found}, expected {wanted}: {json.dumps(first['nodes'])}")
    links = [link["nodes"] for link in first["links"]]
    if links != [[f"node{one}", f"node{other}"] for one, other in scenario.links]:
        wrong.append(f"links {first['links']}, expected {scenario.links}")
    if first["rounds"] > MOST_ROUNDS:
        wrong.append(f"{first['rounds']} rounds, expected {MOST_ROUNDS} at most")
    leaves = dict(scenario.leaves)
    for number, status in statuses.items():
        text = (job.folder / f"output-node{number}").read_text()
        if (status != 0) is not (number in leaves):
            wrong.append(f"node {number} has ended with {status}")
        if leaves.get(number, "") not in text:
            wrong.append(f"node {number} has not said {leaves[number]!r}")
    if "elapsed" not in (job.folder / "output-manager").read_text():
        wrong.append("the manager has not told what the nodes took")
    if job.outcome["steps"] != scenario.steps:
        wrong.append(f"{job.outcome['steps']} steps, expected {scenario.steps}")
    return wrong + _judge_loss(scenario, job, checks)


def _judge_loss(scenario: Scenario, job: LadderJob, checks: list[dict[str, Any]]) -> list[str]:
    """Check that newcomers alone are checked, one after the other, and no process of another node is replaced."""
    recovered = [(record["strategy"], sorted(record["kept"])) for record in job.named("recovered")]
    if scenario.lost is None:
        return [f"recoveries {recovered}, expected none"] if recovered else []
    wrong = []
    alone = [sorted(check["nodes"]) for check in checks[1:]]
    if alone != [[f"node{scenario.places + newcomer}"] for newcomer in range(scenario.newcomers)]:
        wrong.append(f"after the first check {alone} were checked, expected each newcomer alone")
    kept = sorted(str(rank) for rank in range(scenario.places) if rank != scenario.lost)
    if recovered != [("recover", kept)]:
        wrong.append(f"recoveries {recovered}, expected one that keeps ranks {kept}")
    return wrong


def line(scenario: Scenario, job: LadderJob, wrong: list[str]) -> dict[str, Any]:
    """Return the JSON line of a scenario."""
    checks = job.named("node check")
    return {
        "scenario": scenario.name,
        "wrong": wrong,
        "checks": [{"rounds": check["rounds"], "seconds": check["lasted_s"]} for check in checks],
        "found": [check["nodes"] for check in checks][:1],
        "links": [check["links"] for check in checks][:1],
    }
