"""A rank that trains as the session does, without torch: `ending.py end|lose|fail|stop [SIGNAL [WHO]]`.

end: the ranks meet once.
lose: rank 1 kills itself in its first life; its successor is waited for.
fail: rank 1 raises each time.
stop: rank 0 signals torchrun; each rank leaves its training function when it has been signalled, as do all together.
    WHO: `twice`; or, each with its own torchrun, rank 1 signals its own `both` at once or `later`, or not (`one`).
"""

import os
import signal
import sys
import time
from pathlib import Path

from taskd.runtime.worker.worker import AbandonedError, WorkerLink, current
from taskd.wire.messages import Condition, WorldPlan

folder = Path(os.environ["TWIN_FOLDER"])
rank, shape = int(os.environ["RANK"]), sys.argv[1]
told: list[str] = []


def await_file(name: str, link: WorkerLink | None) -> None:
    while not (folder / name).exists():
        if link is not None and link.interrupted:
            raise RuntimeError("a peer is gone")
        time.sleep(0.01)


def agree_to_stop(who: str, link: WorkerLink | None) -> None:
    number, own = signal.Signals[sys.argv[2]], rank == 0 or who in ("both", "later")
    if rank == 1 and who in ("later", "one"):
        await_file("stops-0", None)
        time.sleep(int(who == "later"))
    if own:
        os.kill(os.getppid(), number)
    await_signals(0 if who == "one" and rank == 1 else 1)
    if who == "twice":
        if rank == 0:
            time.sleep(0.5)  # torchrun waits for its ranks then
            os.kill(os.getppid(), number)
        await_signals(2)
    time.sleep(0.3 if who else 0)  # a save, in which a pause would come
    if link is not None and link.interrupted:
        raise RuntimeError("a peer is gone")
    (folder / f"stops-{rank}").touch()
    await_file(f"stops-{1 - rank}", None)  # as an all-reduce of the flag


def await_signals(count: int) -> None:
    while len(told) < count:
        time.sleep(0.01)


def train(link: WorkerLink | None) -> None:
    (folder / f"in-{rank}").touch()
    await_file(f"in-{1 - rank}", link)
    if shape == "lose" and rank == 1 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if shape == "fail" and rank == 1:
        raise ValueError("rank 1 fails")
    if shape == "fail":
        await_file("never", link)
    if shape == "stop":
        agree_to_stop("".join(sys.argv[3:]), link)
    if rank == 1:
        (folder / "back").touch()
    await_file("back", link)


def resilient(link: WorkerLink) -> None:
    """Do the same as `Session`, without a state."""
    step = 1
    link.enter(step, Condition.EMPTY if link.joins else Condition.CLEAN)
    plan: WorldPlan | None = link.await_order() if link.joins else None
    while True:
        error: Exception | None = None
        try:
            if plan is not None:
                link.joined(step, Condition.CLEAN)
                step = plan.target_step
                link.restored(step)
            link.committed(step := step + 1)
            train(link)
            link.returned(step, Condition.CLEAN)
        except RuntimeError as fault:
            error = fault
            link.raised(step, Condition.CLEAN, str(fault))
        try:
            plan = link.await_order()
        except AbandonedError:
            plan = None
        if plan is None:
            if error is not None:
                raise error
            return


if shape == "stop":
    signal.signal(signal.Signals[sys.argv[2]], lambda number, _frame: told.append(signal.Signals(number).name))
here = current()
if here is None:
    train(None)
else:
    resilient(here)
(folder / f"done-{rank}").write_text(" ".join(told))
