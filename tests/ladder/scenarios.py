"""The scenarios of the ladder: one for each strategy and for each part that may die, each with its required result."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.ladder.job import HEAD, PLACES, STEPS, LadderError, LadderJob
from tests.nodes import Nodes


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        play: strikes; returns when the job goes on or has ended.
        strategies: strategies that the manager must have used, recovery by recovery.
        replaced: ranks whose process may be another one in the end.
        same_weights: the outcome must be that of the run without a fault.
        exit_code: exit status of every torchrun that lives.
    """

    name: str
    play: Callable[[LadderJob], None]
    strategies: tuple[str, ...]
    replaced: frozenset[int] = frozenset()
    places: int = PLACES
    spares: int = 0
    env: dict[str, str] = field(default_factory=dict)
    same_weights: bool = True
    exit_code: int = 0
    reason: str = ""
    steps: int = STEPS


def kill_rank(job: LadderJob, place: int) -> None:
    """Send SIGKILL to the rank of a place."""
    job.nodes[place].kill(job.pids[str(place)], signal.SIGKILL)


def retry(job: LadderJob) -> None:
    job.await_event("recovered")


def in_place(job: LadderJob) -> None:
    kill_rank(job, 1)
    kill_rank(job, 2)
    job.await_event("recovered")


def spare(job: LadderJob) -> None:
    job.await_event("node waits")
    job.nodes[1].kill_all()
    job.await_event("recovered")


def asked(job: LadderJob) -> None:
    job.nodes[1].kill_all()
    job.wait((job.folder / "asked").exists, "the command that asks for a node")
    assert (job.folder / "asked").read_text().strip() == "1"
    job.nodes[1].boot()
    job.start_torchrun(job.nodes[1], 1)
    job.await_event("recovered")


def repeated(job: LadderJob) -> None:
    """Kill the new process as soon as it is there, until the node is given up."""
    job.await_event("node waits")
    seen: set[int] = set()
    while not job.named("recovered"):
        pid = job.pids["1"]
        if pid not in seen and job.nodes[1].up and pid in job.nodes[1].pids():
            seen.add(pid)
            kill_rank(job, 1)
        job.wait(partial(changed, job, pid), "what follows")


def changed(job: LadderJob, pid: int) -> bool:
    """Return whether rank 1 has another process, or the job has recovered."""
    return job.pids["1"] != pid or bool(job.named("recovered"))


def elastic(job: LadderJob) -> None:
    job.nodes[2].kill_all()
    job.await_event("recovered")
    job.await_progress(0, 20)
    job.nodes[2].boot()
    job.start_torchrun(job.nodes[2], 2)
    job.await_event("recovered", 2)


def dump(job: LadderJob) -> None:
    job.nodes[2].kill_all()
    job.await_event("stopped")
    assert list((job.folder / "checkpoints").glob("step-*/taskd.json")), "no checkpoint is where the manager says"


def give_up(job: LadderJob) -> None:
    kill_rank(job, 1)
    job.await_event("stopped")


def drain(job: LadderJob) -> None:
    job.await_event("node waits")
    done = job.nodes[0].start(
        ["taskd", "drain", "1", "--manager", f"{HEAD}:9601"],
        env=job.env,
        output=job.folder / "output-drain",
    )
    job.await_event("recovered")
    assert done.wait(30) == 0, (job.folder / "output-drain").read_text()


def slow(job: LadderJob) -> None:
    """Stop the rank of node 1 for 0.3 s of each half second after healthy training, until its node has left."""
    job.await_event("node waits")
    job.await_steps(900)
    pid = job.pids["1"]
    while job.pids["1"] == pid:
        job.nodes[1].kill(pid, signal.SIGSTOP)
        time.sleep(0.3)  # this makes it slow
        job.nodes[1].kill(pid, signal.SIGCONT)
        time.sleep(0.2)
    job.await_event("recovered")
    told = job.named("diagnosis")
    assert [(one["kind"], one["culprits"]) for one in told] == [("SLOW", [1])], [one["sentence"] for one in told]


def manager(job: LadderJob) -> None:
    """Kill the manager, start a new one on another node while training goes on, and then kill a rank."""
    job.managers[0].kill()
    job.managers[0].wait()
    job.await_steps(20)
    job.start_manager(job.nodes[1])
    job.wait(
        lambda: len([e for e in job.named("directive") if e["order"] == "run"]) >= 2, "the new manager's first word"
    )
    kill_rank(job, 2)
    job.await_event("recovered")


def first_node(job: LadderJob) -> None:
    """Kill node 0 with rank 0, torchrun's store and the manager."""
    job.nodes[0].kill_all()
    job.nodes[0].boot()
    job.start_manager(job.nodes[0])
    job.start_torchrun(job.nodes[0], 0)
    job.await_event("recovered")


def agent(job: LadderJob) -> None:
    """Kill torchrun alone: its rank must die with it."""
    rank = job.nodes[1].pids()[job.pids["1"]]
    os.kill(torchrun_of(job, 1), signal.SIGKILL)
    job.wait(lambda: not os.path.exists(f"/proc/{rank}"), "the end of the orphaned rank", 2.0)
    job.torchruns[1].wait(10)
    job.start_torchrun(job.nodes[1], 1)
    job.await_event("recovered")


def torchrun_of(job: LadderJob, number: int) -> int:
    """Return the torchrun process of a node, by its pid outside."""
    for outside in job.nodes[number].pids().values():
        with open(f"/proc/{outside}/cmdline", "rb") as words:
            if b"/torchrun" in words.read().partition(b"\0")[2].partition(b"\0")[0]:
                return outside
    raise AssertionError("no torchrun there")


def comes_back(job: LadderJob) -> None:
    """Kill torchrun alone. 3 s later its node starts it again, with the same lines."""
    os.kill(torchrun_of(job, 1), signal.SIGKILL)
    job.torchruns[1].wait(10)
    time.sleep(3)  # the time that the node needs
    job.start_torchrun(job.nodes[1], 1)
    job.await_event("recovered")
    for node, ranks in ((job.nodes[0], "new_ranks=none kept_ranks=0"), (job.nodes[1], "new_ranks=1 kept_ranks=none")):
        log = job.folder / f"output-{node.name}"
        job.wait(lambda log=log, ranks=ranks: ranks in log.read_text(), f"{ranks} in the log of {node.name}")  # type: ignore[misc]


def partition(job: LadderJob) -> None:
    """Cut node 2 off: the others take the spare. After the network is mended, it obeys and waits."""
    job.await_event("node waits")
    job.nodes[2].cut()
    job.await_event("recovered")
    job.nodes[2].mend()
    waiting = len(job.named("node waits"))
    job.wait(lambda: len(job.named("node waits")) > waiting - 1, "the healed node as a candidate")


def small_side(job: LadderJob) -> None:
    """Part the manager's node from the others: it decides nothing. After they are connected again, all goes on."""
    job.nodes.part(job.nodes[1], job.nodes[2])
    job.wait(
        lambda: "too few nodes are heard" in job.folder.joinpath("output-manager").read_text(), "the manager's doubt"
    )
    job.nodes.mend(job.nodes[1], job.nodes[2])
    job.await_progress(0, 40)


def again(job: LadderJob) -> None:
    """Kill the newcomer while it joins, and with it the donor of its state."""
    kill_rank(job, 1)
    before = job.pids["1"]
    job.wait(lambda: job.pids["1"] != before, "the new process of rank 1")
    kill_rank(job, 1)
    kill_rank(job, 0)
    job.await_event("recovered")


def nothing(job: LadderJob) -> None:
    del job


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("clean end", nothing, ()),
    Scenario("retry", retry, ("retry",), env={"LADDER_FAILS": "1:60"}),
    Scenario("recover-in-place, two ranks of two nodes", in_place, ("recover-in-place",), frozenset({1, 2})),
    Scenario("recover-in-place, cold", in_place, ("recover-in-place",), frozenset({1, 2}), env={"TASKD_STANDBY": "0"}),
    Scenario("recover, a spare waits", spare, ("recover",), frozenset({1}), spares=1),
    Scenario(
        "recover, the cluster is asked",
        asked,
        ("recover",),
        frozenset({1}),
        env={"TASKD_NODE_COMMAND": "sh -c 'echo $TASKD_NODE_RANK > {folder}/asked'"},
    ),
    Scenario("recover, the process fails again on its node", repeated, ("recover",), frozenset({1}), spares=1),
    Scenario(
        "elastic-training, shrink and grow",
        elastic,
        ("elastic-training", "elastic-training"),
        frozenset({2}),
        env={"TASKD_RECOVER_STRATEGY": "elastic-training"},
        same_weights=False,
    ),
    Scenario(
        "dump",
        dump,
        (),
        env={"TASKD_RECOVER_STRATEGY": "dump", "TASKD_CHECKPOINT_DIR": "{folder}/checkpoints"},
        same_weights=False,
        exit_code=1,
        reason="a checkpoint of step",
    ),
    Scenario(
        "exit", give_up, (), env={"TASKD_RECOVER_STRATEGY": "exit"}, same_weights=False, exit_code=1, reason="SIGKILL"
    ),
    Scenario("drain", drain, ("recover",), frozenset({1}), spares=1),
    Scenario(
        "a slow node, a spare waits",
        slow,
        ("recover",),
        frozenset({1}),
        spares=1,
        env={"TASKD_SLOW_RECOVERY": "on"},
        same_weights=False,
        steps=2000,
    ),
    Scenario("manager killed", manager, ("recover-in-place",), frozenset({2})),
    Scenario("node 0 lost, manager included", first_node, ("recover",), frozenset({0})),
    Scenario("agent killed", agent, ("recover",), frozenset({1})),
    Scenario("a node of two comes back", comes_back, ("recover",), frozenset({1}), places=2),
    Scenario("partition, one node cut off", partition, ("recover",), frozenset({2}), spares=1),
    Scenario("partition, the manager on the small side", small_side, ()),
    Scenario("a fault during recovery", again, ("recover-in-place",), frozenset({0, 1})),
)


def perform(scenario: Scenario, folder: Path, wanted: Callable[[int], str]) -> tuple[LadderJob, list[str]]:
    """Play a scenario on its own nodes, with its files in `folder`. Return the job after its end, and the defects.

    `wanted` returns the SHA-256 of the weights of so many ranks without a fault. Raises `NodesUnavailableError`.
    """
    env = {name: value.replace("{folder}", str(folder)) for name, value in scenario.env.items()}
    places, spares = scenario.places, scenario.spares
    with Nodes(places + spares) as nodes:
        job = LadderJob(nodes, folder, places=places, spares=spares, steps=scenario.steps, env=env)
        try:
            job.start()
            before = job.pids
            scenario.play(job)
            wrong = judge(scenario, job, before, job.end(), wanted(places))
        except (LadderError, AssertionError, OSError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
    return job, wrong


def judge(
    scenario: Scenario, job: LadderJob, before: dict[str, int], statuses: dict[int, int], wanted: str
) -> list[str]:
    """Return the defects of the job; an empty list if there are none."""
    wrong = []
    records = job.named("recovered")
    taken = tuple(record["strategy"] for record in records)
    if taken != scenario.strategies:
        wrong.append(f"strategies {taken}, expected {scenario.strategies}")
    if any(status != scenario.exit_code for status in statuses.values()):
        wrong.append(f"exit codes {statuses}, expected {scenario.exit_code} everywhere")
    stopped = job.named("stopped")
    if not stopped or scenario.reason not in stopped[-1]["reason"]:
        wrong.append(f"the end was {[event['reason'] for event in stopped]}, expected {scenario.reason or 'one'!r}")
    if scenario.exit_code:
        return wrong
    changed = {int(rank) for rank, pid in job.pids.items() if before.get(rank) != pid}
    if changed - scenario.replaced:
        wrong.append(f"ranks {sorted(changed - scenario.replaced)} have other processes")
    if scenario.same_weights and job.outcome["sha256"] != wanted:
        wrong.append("weights differ from those of the run without a fault")
    lost = steps_lost(scenario, job)
    if not 0 <= lost <= max(1, len(records) + (scenario.name.startswith("a fault"))):
        wrong.append(f"{lost} steps were done again")
    return wrong


def steps_lost(scenario: Scenario, job: LadderJob) -> int:
    """Return the steps that a rank with its first process has done again, without those that prove exactness."""
    kept = next((rank for rank in range(scenario.places) if rank not in scenario.replaced), None)
    if kept is None or "steps" not in job.outcome:
        return 0
    return job.passes(kept) - int(job.outcome["steps"]) - job.proofs


def line(scenario: Scenario, job: LadderJob, wrong: list[str]) -> dict[str, Any]:
    """Return the JSON line of a scenario."""
    records = job.named("recovered")
    return {
        "scenario": scenario.name,
        "wrong": wrong,
        "strategies": [record["strategy"] for record in records],
        "total_ms": [
            round(record["phases_ms"].get("total", record["phases_ms"].get("started", -1))) for record in records
        ],
        "kept": [record["kept"] for record in records],
        "replaced": [record["replaced"] for record in records],
        "steps_lost": steps_lost(scenario, job)
        if scenario.exit_code == 0 and (job.folder / "out.json").exists()
        else None,
    }
