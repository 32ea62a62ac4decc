"""Every job ends: whatever fails in torchrun's own process, with stock torchrun's status and within 5 s of its time.

The list of calls comes from the code: a census of a job that starts, loses a rank, recovers it and ends names all that
run. Each fails in turn, at each of its calls or at the first only. The script marks its end behind its training.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest

from tests.thorough import everyday
from tests.torchrun.conftest import Play
from tests.torchrun.programs.breaks import SIGNAL, breakable, errors_of
from tests.torchrun.twins import PROGRAMS, Launch, Seen, Twin, launch

MORE_S: Final = 5.0
ENDING: Final = str(PROGRAMS / "ending.py")
LOSES: Final = launch("--max-restarts=1", ENDING, "lose")
DONE: Final = frozenset(("done-0", "done-1"))
EVERY: Final = 40
"""Of so many calls one fails in every run."""
AT_ONCE: Final = 3
MOST_IDLE: Final = 100
"""One of so many calls may not run again: whether it does is chance."""
HUNG: Final = ("taskd.runtime.manager.manager:Manager._perform", "taskd.runtime.agent.sockets:send_packet")
"""By these a job hung once: what breaks is neither the manager's answer nor the rank's end."""
OTHER_SECRET: Final = "TASKD_SECRET=" + "0123456789abcdef" * 4
STATIC: Final = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", "--master-port={port}")
MANAGED: Final = {"TASKD_MANAGER": "127.0.0.1:{manager}"}


@dataclass(frozen=True)
class Known:
    """What the ordinary runs of the job show: stock torchrun's time, and the calls that taskd makes."""

    stock_s: float
    calls: tuple[str, ...]


@pytest.fixture(scope="module")
def known(twins: tuple[Twin, Twin], tmp_path_factory: pytest.TempPathFactory) -> Known:
    stock, taskd = twins
    plain = stock.end(stock.begin(LOSES, "census"))
    assert plain.statuses == [0], plain.text
    assert set(plain.others) >= DONE
    census = tmp_path_factory.mktemp("census") / "calls"
    seen = taskd.end(taskd.begin(Launch(LOSES.nodes, {"CENSUS": str(census)}), "census"))
    assert seen.statuses == [0], seen.text
    ran = set(census.read_text().splitlines())
    return Known(plain.seconds, tuple(call for call in breakable() if call in ran))


def wrong(seen: Seen, known: Known) -> str:
    """Return what is worse than under stock torchrun."""
    found = []
    if seen.statuses != [0]:
        found.append(f"ends with {seen.statuses}")
    if not set(seen.others) >= DONE:
        found.append("does not come to the end of the script")
    if seen.seconds > known.stock_s + MORE_S:
        found.append(f"takes {seen.seconds:.1f} s, stock torchrun {known.stock_s:.1f} s")
    return ", ".join(found)


def break_each(twins: Sequence[Twin], known: Known, calls: Sequence[str], folder: Path) -> list[str]:
    """Play a job for each call, which fails there; return what is wrong. Nearly all run in each job that is played."""
    free: SimpleQueue[Twin] = SimpleQueue()
    for twin in twins:
        free.put(twin)

    def play(number: int, call: str) -> str:
        twin, fired = free.get(), folder / f"fired-{number}"
        errors = errors_of(call)
        error = errors[number % len(errors)]
        once = {"ONCE": "on"} if number % 3 == 0 else {}
        try:
            job = Launch(LOSES.nodes, {"BREAKS": call, "ERROR": error, "FIRED": str(fired), **once})
            what = wrong(seen := twin.end(twin.begin(job, "breaks")), known)
            return f"{call} ({error}) {what}\n{seen.text}" if what else ""
        except AssertionError as hung:
            return f"{call} ({error}) hangs: {hung}"
        finally:
            free.put(twin)

    with ThreadPoolExecutor(len(twins)) as pool:
        found = list(pool.map(play, range(len(calls)), calls))
    idle = [call for number, call in enumerate(calls) if not (folder / f"fired-{number}").exists()]
    if len(idle) > 1 + len(calls) // MOST_IDLE:
        found.append(f"these were not called: {idle}")
    return [text for text in found if text]


def test_there_are_as_many_calls_as_the_code_has(known: Known) -> None:
    print(f"{len(known.calls)} calls of {len(breakable())} run in torchrun while a job starts, loses a rank and ends")
    assert len(known.calls) >= 300, known.calls


def test_some_calls_fail(twins: tuple[Twin, Twin], known: Known, tmp_path: Path) -> None:
    found = break_each([twins[1]], known, known.calls[::EVERY], tmp_path)
    assert not found, "\n\n".join(found)


def test_what_hung_once(twins: tuple[Twin, Twin], known: Known, tmp_path: Path) -> None:
    calls = [call for call in HUNG if call in known.calls]
    found = break_each([twins[1]], known, calls * 3, tmp_path)
    assert not found, "\n\n".join(found)
    assert len(calls) == len(HUNG)


@pytest.fixture
def more(run_dir: Path) -> Iterator[list[Twin]]:
    made = [Twin(run_dir / f"twin-{number}", taskd=True) for number in range(AT_ONCE)]
    for twin in made:
        twin.await_ready()
    yield made
    for twin in made:
        twin.close()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_call_fails(more: list[Twin], known: Known, tmp_path: Path) -> None:
    found = break_each(more, known, known.calls, tmp_path)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_graceful_stop(play: Play, signal: str) -> None:
    """The ranks agree to leave their training function; what stands behind it runs, with stock torchrun's signals."""
    pair = play(launch(ENDING, "stop", signal))
    assert pair.taskd.statuses == pair.stock.statuses == [1]
    for name in DONE:
        assert pair.taskd.others[name] == pair.stock.others[name] == signal
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S


def test_a_second_signal(play: Play) -> None:
    """It comes while torchrun waits for its ranks, and is handed on as the first."""
    pair = play(launch(ENDING, "stop", "SIGTERM", "twice"))
    assert pair.taskd.statuses == pair.stock.statuses == [1]
    for name in DONE:
        assert pair.taskd.others[name] == pair.stock.others[name] == "SIGTERM SIGTERM"
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S
    assert not [line for line in pair.taskd.console if "Traceback" in line and line not in pair.stock.console]


@pytest.mark.parametrize("who", ["both", "later", "one"])
def test_a_graceful_stop_of_several_nodes(play: Play, who: str) -> None:
    """No node is paused for another's stop: what the ranks agree on, and save then, is theirs."""
    nodes = tuple((f"PET_NODE_RANK={rank}", *STATIC, ENDING, "stop", "SIGTERM", who) for rank in range(2))
    pair = play(Launch(nodes, MANAGED, manager=True))
    assert pair.taskd.statuses == pair.stock.statuses, f"{pair.taskd.text}\n--- stock\n{pair.stock.text}"
    for name in DONE:
        assert pair.taskd.others.get(name) == pair.stock.others[name], pair.taskd.text
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S


@pytest.mark.parametrize(
    "call",
    [
        "taskd.adaptors.torchrun.host:TorchrunHost.poll",
        "taskd.adaptors.torchrun.host:TorchrunHost.begin_closing",
        "taskd.adaptors.torchrun.host:TorchrunHost.await_turn",
    ],
)
def test_a_signal_in_a_call_of_ours_ends_the_job(twins: tuple[Twin, Twin], tmp_path: Path, call: str) -> None:
    """torch's handler raises wherever torchrun is: that is no failure of taskd."""
    taskd, fired = twins[1], tmp_path / "fired"
    env = {"BREAKS": call, "ERROR": SIGNAL, "FIRED": str(fired), "ONCE": "on"}
    seen = taskd.end(taskd.begin(Launch(launch("--max-restarts=1", ENDING, "end").nodes, env), "signal"))
    assert fired.exists()
    assert seen.statuses == [1], seen.text
    assert "SignalException: broken by the test" in seen.text


@pytest.mark.parametrize("shape", everyday(["end", "lose", "fail"], "lose"))
def test_no_manager_answers(play: Play, shape: str) -> None:
    """It was named, and is not there: stock torchrun after the time that the setting gives."""
    words = ("--nproc-per-node=2", f"--max-restarts={int(shape == 'lose')}", ENDING, shape)
    pair = play(Launch((words,), {**MANAGED, "TASKD_MANAGER_WAIT_S": "1"}))
    assert pair.taskd.statuses == pair.stock.statuses == [int(shape == "fail")]
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S
    assert set(pair.taskd.others) == set(pair.stock.others)


def test_another_secret_on_one_node(play: Play) -> None:
    """The job never forms at the manager: neither node waits for the other one, and the manager ends too."""
    nodes = tuple((f"PET_NODE_RANK={rank}", *STATIC, ENDING, "end") for rank in range(2))
    pair = play(Launch((nodes[0], (OTHER_SECRET, *nodes[1])), MANAGED, manager=True))
    assert pair.taskd.statuses == pair.stock.statuses == [0, 0], pair.taskd.text
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S
    assert set(pair.taskd.others) >= DONE
    assert "not all 2 nodes of the job have come to the manager: torchrun's own behaviour takes over" in pair.taskd.text
    assert "refused our secret" in pair.taskd.text


def test_an_agent_that_fails_on_one_node_leaves_the_job_to_torchrun(play: Play, tmp_path: Path) -> None:
    """On all nodes: none takes the other for lost."""
    nodes = tuple((f"PET_NODE_RANK={rank}", *STATIC, ENDING, "end") for rank in range(2))
    breaks = ("BREAKS=taskd.runtime.agent.agent:NodeAgent._hear_report", "ERROR=KeyError", f"FIRED={tmp_path}/fired")
    pair = play(Launch((nodes[0], (*breaks, *nodes[1])), MANAGED, manager=True))
    assert pair.taskd.statuses == pair.stock.statuses == [0, 0], pair.taskd.text
    assert pair.taskd.seconds < pair.stock.seconds + MORE_S
    assert set(pair.taskd.others) >= DONE
    assert pair.taskd.text.count("the agent of this node has failed") == 1, pair.taskd.text
    assert "the agent of node 1 has ended by an error" in pair.taskd.text, pair.taskd.text
