"""Checkpoints that several real ranks write and load: on any number of ranks, and either whole or absent."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.state import TrainState
from tests.launch import Launcher
from tests.thorough import everyday
from tests.training.checkpoint_state import contents, make, train
from tests.training.job import ENVIRONMENT, run_ranks

PROGRAM = Path(__file__).with_name("checkpoint_program.py")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def port() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


class Ranks:
    """Runner of one case's ranks that waits for their end."""

    def __init__(self, launcher: Launcher, port: int, directory: Path) -> None:
        self._launcher = launcher
        self._port = port
        self._directory = directory
        self._output = ""

    def __call__(self, case: str, size: int, dead: int | None = None, apart: int | None = None) -> None:
        """Run a case. `dead`: the rank that kills itself. `apart`: a rank with another disk at the shelf's path."""
        statuses = self._play(case, size) if apart is None else self._play_apart(case, size, apart)
        assert statuses == [-9 if rank == dead else 0 for rank in range(size)], self._output

    def _play(self, case: str, size: int) -> list[int]:
        arguments = (case, "{rank}", str(size), str(self._port), self._directory)
        statuses, self._output = run_ranks(self._launcher, size, PROGRAM, *arguments)
        return statuses

    def _play_apart(self, case: str, size: int, apart: int) -> list[int]:
        ranks = [self._start(case, rank, size, rank == apart) for rank in range(size)]
        statuses = [process.wait(60) for process in ranks]
        self._output = "\n".join(map(self._launcher.output, ranks))
        return statuses

    def _start(self, case: str, rank: int, size: int, is_apart: bool) -> "subprocess.Popen[bytes]":
        numbers = map(str, (rank, size, self._port))
        command: list[str | Path] = [sys.executable, PROGRAM, case, *numbers, self._directory]
        if is_apart:
            mount = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, "sh", self._directory / "shelf", *command]
        return self._launcher.start(command, env=ENVIRONMENT)


def save(directory: Path) -> None:
    state = make(1)
    train(state, 3)
    dump(state._recovery, directory / "shelf", step=3, job_id="job", reason="a node was lost")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "shelf").iterdir())


@pytest.fixture
def ranks(launcher: Launcher, port: int, tmp_path: Path) -> Ranks:
    return Ranks(launcher, port, tmp_path)


@pytest.mark.slow
def test_four_ranks_write_and_four_two_and_one_load(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranks("write", 4)
    assert names(tmp_path) == ["step-3"]
    ranks("read", 4)
    ranks("read", 2)
    state = make(7)
    assert load_latest(state, tmp_path / "shelf") == 3
    reference = pickle.loads((tmp_path / "reference-0").read_bytes())
    assert {key: reference[key] for key in contents(state)} == contents(state)
    assert "was written by 4 ranks and is loaded by 1: each goes on with its own random numbers, sampler" in caplog.text


@pytest.mark.parametrize(("case", "dead", "left"), [
    ("killed_writing", 2, []),
    ("killed_first", 0, []),
    ("killed_at_the_end", 0, ["step-3"]),
    ("killed_in_parts", 1, []),
])  # fmt: skip
def test_a_rank_dies_meanwhile(ranks: Ranks, tmp_path: Path, case: str, dead: int, left: list[str]) -> None:
    ranks(case, 3, dead)
    assert names(tmp_path) == left


@pytest.mark.parametrize("case", everyday(["full", "behind"], "full"))
def test_one_rank_cannot(ranks: Ranks, tmp_path: Path, case: str) -> None:
    ranks(case, 2)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.root
@needs_root
def test_nodes_that_do_not_share_a_disk(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    ranks("elsewhere", 2, apart=1)
    assert not names(tmp_path)


@pytest.mark.thorough
def test_ranks_that_see_different_directories(ranks: Ranks, tmp_path: Path) -> None:
    save(tmp_path)
    ranks("differing", 2)


def test_a_newcomer_alone(ranks: Ranks, tmp_path: Path) -> None:
    save(tmp_path)
    ranks("alone", 1)


def test_sharded_parameters(ranks: Ranks, tmp_path: Path) -> None:
    ranks("sharded", 2)
    plain = nn.Linear(10, 6)
    state = TrainState(model=plain, optimizer=torch.optim.AdamW(plain.parameters()))
    assert load_latest(state, tmp_path / "shelf") == 1
    for name, value in pickle.loads((tmp_path / "plain-0").read_bytes()).items():
        torch.testing.assert_close(plain.state_dict()[name], value)


def test_buffers_of_sharded_models_are_each_ranks_own(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranks("own_buffers", 2)
    net = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6))
    state = TrainState(model=net, optimizer=torch.optim.AdamW(net.parameters()))
    assert load_latest(state, tmp_path / "shelf") == 1
    first, second = (pickle.loads((tmp_path / f"mean-{rank}").read_bytes()) for rank in (0, 1))
    assert torch.equal(net.state_dict()["1.running_mean"], first)
    assert not torch.equal(first, second)
    assert "has model.1.running_mean, model.1.running_var as each replica set had it" in caplog.text
