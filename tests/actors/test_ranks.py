"""Processes that take ranks by themselves, under a manager in this process. The test kills and replaces one of them."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import taskd
from taskd.errors import ConfigError
from tests.launch import Launcher, free_port
from tests.thorough import everyday

RANK = Path(__file__).with_name("programs") / "rank.py"
LIMIT_S = 200.0


class Actors:
    """A job of two ranks, and the means to start them."""

    def __init__(self, launcher: Launcher, folder: Path, run_dir: Path, where: str) -> None:
        self.manager = taskd.manager(2, run_dir=str(run_dir))
        self._launcher, self._where, self._port = launcher, where, free_port()
        self._run_dir = run_dir
        self._ticket = folder / "ticket"
        self._ticket.write_text(self.manager.ticket.to_json())

    def start(self, rank: int, kills: str = "") -> "subprocess.Popen[bytes]":
        words = ["python", RANK, self._ticket, rank, self._port, self._where, kills]
        env = {"TASKD_RUN_DIR": str(self._run_dir), "GLOO_SOCKET_IFNAME": "lo"}
        return self._launcher.start([str(word) for word in words], env=env)

    def output(self, process: "subprocess.Popen[bytes]") -> list[str]:
        said = self._launcher.output(process).splitlines()
        return [line for line in said if line.split(" ")[0] in ("begins", "joins", "end")]


@pytest.fixture
def make(launcher: Launcher, tmp_path: Path, run_dir: Path) -> Iterator[Callable[[str], Actors]]:
    made: list[Actors] = []

    def one(where: str) -> Actors:
        made.append(Actors(launcher, tmp_path, run_dir, where))
        return made[-1]

    yield one
    for actors in made:
        actors.manager.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", everyday(["main", "thread"], "thread"))
def test_killed_ranks_are_replaced_by_whoever_starts_them(make: Callable[[str], Actors], where: str) -> None:
    """The other rank keeps its process, whichever thread it trains in. The weights are those of an undisturbed run."""
    calm = make(where)
    undisturbed = [calm.start(rank) for rank in range(2)]
    assert [process.wait(LIMIT_S) for process in undisturbed] == [0, 0]
    disturbed = make(where)
    processes = [disturbed.start(0), disturbed.start(1, "5")]
    assert processes[1].wait(LIMIT_S) == -signal.SIGKILL
    processes[1] = disturbed.start(1)
    assert [process.wait(LIMIT_S) for process in processes] == [0, 0]
    begins, end = calm.output(undisturbed[0])
    assert begins == "begins"
    assert end.startswith("end")
    assert disturbed.output(processes[0]) == ["begins", end]
    assert disturbed.output(processes[1]) == ["joins", end]


def test_a_rank_that_the_job_has_not_is_refused(make: Callable[[str], Actors]) -> None:
    with pytest.raises(ConfigError, match="found rank 2, expected one from 0 to 1"):
        taskd.agent(make("main").manager.ticket, 2)
