"""A job of one rank with an agent's socket: `session_program.py CASE`. The test plays the agent."""

import os
import sys
import time
import traceback
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

import taskd
from taskd.adaptors.training import runtime as runtimes
from taskd.runtime.worker.worker import current, start_from_environment

CASE = sys.argv[1]


class Flaky(Exception):  # noqa: N818 - it must not be a RuntimeError
    pass


FAULTS = {
    "plain": lambda: ValueError("a bug of the script"),
    "runtime": lambda: RuntimeError("a peer has gone"),
    "nan": lambda: RuntimeError("a peer has gone"),
    "shapes": lambda: RuntimeError("DDP expects same model across all ranks, but Rank 0 has 2 params"),
    "closed": lambda: RuntimeError("[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:5"),
    "retry": lambda: Flaky("link down for a moment"),
    "fatal": lambda: RuntimeError("the data set is broken"),
    "drained": lambda: ValueError("a commit after the order went on"),
    "asking": lambda: ValueError("a commit after the order went on"),
    "raising": lambda: ValueError("a commit that raises went on"),
    "each": lambda: ValueError("a step after the order went on"),
}
TIMES = {"shapes": 2, "closed": 2}
"""Number of times that the error comes, where it is not one."""


class Asking:
    """Sampler of the user's. In one commit it waits for the order to pause, then asks for the world size."""

    def __init__(self) -> None:
        self.waits = False

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def state_dict(self) -> dict[str, int]:
        link = current()
        assert link is not None
        while self.waits and not link.interrupted:
            time.sleep(0.001)
        if CASE == "raising" and self.waits:
            raise RuntimeError("a collective of the sampler's own")
        return {"ranks": dist.get_world_size() if self.waits else 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    taskd.register_fault("Flaky", "retry")
    taskd.register_fault("data set is broken", "fatal")
    link = start_from_environment(tuple)
    assert link is not None
    runtimes.install(link, 1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['PORT']}", rank=0, world_size=1)
    model = nn.Linear(2, 2)
    data = {"sampler": Asking()} if CASE in ("asking", "raising") else None
    state = taskd.TrainState(seed=4, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=data)
    calls: list[int] = []

    def step_in_a_pause() -> None:
        model(torch.ones(1, 2)).sum().backward()
        state.optimizer.step()
        while not link.interrupted:
            time.sleep(0.001)
        state.commit()

    @taskd.resilient(state)
    def train() -> None:
        calls.append(state.step)
        if CASE == "each" and len(calls) > 1:
            step_in_a_pause()
        if len(calls) == 1:
            model(torch.ones(1, 2)).sum().backward()
            state.optimizer.step()
            state.commit(loss=torch.tensor(float("nan")) if CASE == "nan" else None)
            if CASE in ("drained", "each"):
                step_in_a_pause()
            if CASE in ("asking", "raising"):
                model(torch.ones(1, 2)).sum().backward()
                state.optimizer.step()
                state.sampler.waits = True
                state.commit()
        if len(calls) <= TIMES.get(CASE, 1):
            raise FAULTS[CASE]()

    train()
    assert calls == [0, *[1] * TIMES.get(CASE, 1)]


# Without torch's own end, which sometimes aborts (see examples/digits_ddp.py): this is not the subject of the test.
status = 0
try:
    main()
except BaseException:  # noqa: BLE001 - the status reports any error
    traceback.print_exc()
    status = 1
os._exit(status)
