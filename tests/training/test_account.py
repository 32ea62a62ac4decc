"""A rank's account of its activity, wherever its main thread is."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from taskd.adaptors.training.script.standing import see_standing
from taskd.config.worker import WorkerConfig
from taskd.core.diagnosis.conditions import condition_of_hang
from taskd.core.diagnosis.evidence import Clocks, Evidence, Frames, Standing
from taskd.core.diagnosis.findings import Kind
from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.runtime.worker.stacks import MOST_FRAMES, MOST_THREADS, all_stacks, main_stack
from taskd.wire.accounts import Account
from taskd.wire.codec import MAX_LOCAL_BYTES, encode
from taskd.wire.kinds import JobRank
from taskd.wire.messages import AccountRequest, Hello, Release, Stage, WorkerReport
from tests.launch import Launcher
from tests.runtime.local import Ear
from tests.training.job import ENVIRONMENT

PROGRAM = Path(__file__).with_name("account_program.py")
LIMIT_S = 30.0
Begin = Callable[[str], "Agent"]


class Agent:
    """Agent that queries one rank."""

    def __init__(self, server: LocalServer, peer: Peer, ear: Ear) -> None:
        self._peer, self._ear = peer, ear
        self._number = 0

    def tell(self, message: AccountRequest | Release) -> None:
        assert self._peer.send(message)

    def account(self) -> Account:
        self._number += 1
        self.tell(AccountRequest(number=self._number))
        _, account = self._ear.until(lambda _peer, message: isinstance(message, Account))
        assert isinstance(account, Account)
        assert account.number == self._number
        return account

    def at(self, frame: str) -> Account:
        """Query until its main thread is in this frame."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            account = self.account()
            if any(re.search(frame, line) for line in account.threads[0].stack):
                return account
            assert time.monotonic() < end_s, account
            time.sleep(0.05)

    def reported(self, stage: Stage) -> None:
        self._ear.until(lambda _peer, message: isinstance(message, WorkerReport) and message.stage is stage)


@pytest.fixture
def begin(launcher: Launcher, run_dir: Path) -> Iterator[Begin]:
    server = LocalServer(run_dir / "agent.sock")

    def start(case: str) -> Agent:
        config = WorkerConfig(
            agent_socket=server.path,
            agent_pid=os.getpid(),
            run_dir=run_dir,
            rank=JobRank(0),
            incarnation=0,
            generation=0,
        )
        env = {**ENVIRONMENT, **config.environment(), "RANK": "0", "WORLD_SIZE": "1", "MEET": str(run_dir / "meet")}
        launcher.start(["python", PROGRAM, case], env=env)
        ear = Ear(server)
        peer, _ = ear.until(lambda _peer, message: isinstance(message, Hello))
        return Agent(server, peer, ear)

    yield start
    server.close()


STANDINGS = {
    "before torch": ("in stay$", Standing.STARTING),
    "set-up": ("in stay$", Standing.STARTING),
    "saving in the set-up": ("in write$", Standing.CHECKPOINT),
    "training": ("in train$", Standing.TRAINING),
    "evaluation": ("in evaluate$", Standing.EVALUATION),
    "a frozen layer": ("in evaluate_a_part$", Standing.TRAINING),
    "saving": ("in write$", Standing.CHECKPOINT),
    "data": ("/torch/utils/data/dataloader.py:.* in _try_get_data$", Standing.TRAINING),
    "lock": ("in lock_again$", Standing.TRAINING),
    "paused": ("in await_order$", Standing.PAUSED),
}


@pytest.mark.parametrize("case", STANDINGS)
def test_what_a_rank_is_about(begin: Begin, case: str) -> None:
    frame, standing = STANDINGS[case]
    account = begin(case).at(frame)
    assert account.standing == standing.value
    assert account.threads[0].name == "MainThread"
    assert re.search(r"/account_program\.py:\d+ in <module>$", account.threads[0].stack[-1])
    assert all(re.search(r":\d+ in \S+", line) for thread in account.threads for line in thread.stack)
    threads = {thread.name: thread.stack for thread in account.threads}
    assert "taskd-control" not in threads, "who is asked leaves itself out"
    silent = Evidence(frames=Frames(account.threads[0].stack), clocks=Clocks(0.1, 0.0, 3.0))
    assert (condition_of_hang(silent).kind is Kind.DATA_BLOCKED) == (case == "data")
    if case == "lock":
        assert threads["MainThread"][0].endswith("in lock_again")
        assert any(line.endswith("in stay") for line in threads["helper"])


def test_a_rank_that_has_finished(begin: Begin) -> None:
    agent = begin("finished")
    agent.reported(Stage.FINISHED)
    assert agent.at("in await_order$").standing == Standing.FINISHED.value
    agent.tell(Release(generation=0))
    agent.reported(Stage.RELEASED)
    assert agent.at("in stay$").standing == Standing.FINISHED.value


def test_a_rank_answers_that_holds_the_list_of_threads(begin: Begin) -> None:
    assert begin("list of threads").at("in hold_the_list_of_threads$").standing == Standing.TRAINING.value


def test_an_account_is_bounded(begin: Begin) -> None:
    """A hundred threads, deep in functions; names that are not valid text."""
    account = begin("crowd").at("in crowded$")
    assert 8 < len(account.threads) <= MOST_THREADS
    assert max(len(thread.stack) for thread in account.threads) == MOST_FRAMES
    assert len(encode(account)) < MAX_LOCAL_BYTES
    crowded = next(line for line in account.threads[0].stack if line.endswith("in crowded"))
    assert crowded.startswith("…ö")
    assert crowded.endswith("ö.py:2 in crowded")


def test_of_this_process() -> None:
    """The main thread asks: it leaves itself out of the list and still has its own stack."""
    stack = main_stack()
    assert stack[0].endswith("in main_stack")
    assert stack[1].endswith("in test_of_this_process")
    assert all(thread.name != "MainThread" for thread in all_stacks())


def test_of_very_many_threads_some_are_told_of() -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(2 * MOST_THREADS)]
    for thread in threads:
        thread.start()
    try:
        assert len(all_stacks()) == MOST_THREADS
    finally:
        end.set()
        for thread in threads:
            thread.join()


TRAINS, EVALUATES = nn.Linear(1, 1), nn.Linear(1, 1).eval()


@pytest.mark.parametrize(
    ("frame", "standing"),
    [
        ("/v/site-packages/torch/serialization.py:9 in save", Standing.CHECKPOINT),
        ("/v/site-packages/torch/distributed/checkpoint/state_dict_saver.py:9 in save", Standing.CHECKPOINT),
        ("/v/site-packages/torch/distributed/checkpoint/_async_executor.py:9 in result", Standing.CHECKPOINT),
        ("/v/site-packages/safetensors/torch.py:9 in save_file", Standing.CHECKPOINT),
        ("/v/taskd/adaptors/training/checkpoints/files.py:9 in write", Standing.CHECKPOINT),
        ("/v/site-packages/torch/nn/modules/module.py:9 in forward", Standing.TRAINING),
        ("/home/me/checkpoint.py:9 in save", Standing.TRAINING),
        ("/v/site-packages/torch/utils/checkpoint.py:9 in checkpoint", Standing.TRAINING),
    ],
)
def test_who_is_at_a_checkpoint(frame: str, standing: Standing) -> None:
    stack = ("/usr/lib/python3/threading.py:3 in wait", frame, "/home/me/train.py:1 in <module>")
    assert see_standing(stack, Standing.TRAINING, [TRAINS]) is standing
    assert see_standing(stack, Standing.PAUSED, [EVALUATES]) in (Standing.CHECKPOINT, Standing.PAUSED)


def test_who_evaluates() -> None:
    assert see_standing((), Standing.TRAINING, [EVALUATES]) is Standing.EVALUATION
    assert see_standing((), Standing.TRAINING, [EVALUATES, TRAINS]) is Standing.TRAINING, "a frozen teacher"
    assert see_standing((), Standing.TRAINING, []) is Standing.TRAINING, "no model is known"
    assert see_standing((), Standing.PAUSED, [EVALUATES]) is Standing.PAUSED
