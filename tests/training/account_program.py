"""A rank that reaches one place and stays there: `account_program.py CASE`. The test asks for its activity."""

import os
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import taskd
from taskd.adaptors.training import runtime as runtimes
from taskd.runtime.worker.worker import start_from_environment

CASE = sys.argv[1]


def stay() -> None:
    threading.Event().wait()


class Still(Dataset[torch.Tensor]):
    """Dataset whose first item never comes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3600)
        raise IndexError(index)


class Sink:
    """File that never finishes a write."""

    def write(self, data: bytes) -> int:
        stay()
        return len(data)

    def flush(self) -> None:
        pass


def deep(frames: int) -> None:
    if frames:
        deep(frames - 1)
    else:
        stay()


def wait_for_data(_state: taskd.TrainState) -> None:
    for _ in DataLoader(Still(), num_workers=1):
        pass


def lock(_state: taskd.TrainState) -> None:
    twice = threading.Lock()
    twice.acquire()
    threading.Thread(target=stay, name="helper", daemon=True).start()
    lock_again(twice)  # a frame of its own: `start` waits within this one


def lock_again(twice: threading.Lock) -> None:
    twice.acquire()


def hold_the_list_of_threads(_state: taskd.TrainState) -> None:
    with vars(threading)["_active_limbo_lock"]:
        time.sleep(3600)


def crowd(_state: taskd.TrainState) -> None:
    for number in range(100):
        name = f"{number} \udc80 " + "ü" * 200
        threading.Thread(target=deep, args=(400,), name=name, daemon=True).start()
    names = {"stay": stay}
    exec(compile("def crowded():\n    stay()", "\udcff" + "ö" * 300 + ".py", "exec"), names)
    names["crowded"]()


def evaluate(state: taskd.TrainState) -> None:
    state.model.eval()
    stay()


def evaluate_a_part(state: taskd.TrainState) -> None:
    state.model[0].eval()
    stay()


CASES: dict[str, Callable[[taskd.TrainState], object]] = {
    "training": lambda _: stay(),
    "evaluation": evaluate,
    "a frozen layer": evaluate_a_part,
    "saving": lambda state: torch.save(state.model.state_dict(), Sink()),  # type: ignore[arg-type]
    "data": wait_for_data,
    "lock": lock,
    "list of threads": hold_the_list_of_threads,
    "crowd": crowd,
    "paused": lambda _: (_ for _ in ()).throw(RuntimeError("a peer has gone")),
}


def main() -> None:
    torch.set_num_threads(1)
    link = start_from_environment(tuple)
    assert link is not None
    if CASE == "before torch":
        stay()
    runtimes.install(link, 1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MEET']}", rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if CASE == "set-up":
        model.eval()
        stay()
    if CASE == "saving in the set-up":
        torch.save(model.state_dict(), Sink())  # type: ignore[arg-type]
    state = taskd.TrainState(seed=4, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @taskd.resilient(state)
    def train() -> None:
        state.commit()
        if CASE in CASES:
            CASES[CASE](state)

    train()
    stay()


main()
