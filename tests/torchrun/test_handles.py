"""torch's handles on the ranks' processes, as two threads use them."""

import os
import signal
from collections.abc import Callable, Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from taskd.adaptors.torchrun.handles import RankHandles
from taskd.wire.kinds import LocalRank

L0, L1 = LocalRank(0), LocalRank(1)

LIMIT_S = 20.0
Start = Callable[[], SubprocessHandler]


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts a process as torch does, which waits for its end. All are ended."""
    made: list[SubprocessHandler] = []

    def start_one() -> SubprocessHandler:
        made.append(SubprocessHandler("sleep", ("infinity",), {}, None, None, 0, None))
        return made[-1]

    yield start_one
    for handler in made:
        handler.proc.kill()
        handler.proc.wait()


def handles_on(*handlers: SubprocessHandler, stand_ins: bool = False) -> RankHandles:
    """Return the handles of a context that has started these."""
    context: Any = SimpleNamespace(
        subprocess_handlers=dict(enumerate(handlers)), _running_local_ranks=set(range(len(handlers))), _failures={}
    )
    return RankHandles(context, stand_ins=stand_ins)


def await_end(handler: SubprocessHandler) -> None:
    """Wait for its end, and leave it to be reaped."""
    os.waitid(os.P_PID, handler.proc.pid, os.WEXITED | os.WNOWAIT)


def elsewhere(call: Callable[[], Any]) -> Any:
    """Return the result of a call on another thread."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(LIMIT_S)
    return found[0]


def test_a_successor_has_nothing_of_the_process_that_was_ended_by_us(start: Start) -> None:
    handles = handles_on(start(), start())
    handles.kill(L1, signal.SIGKILL)
    assert [handles.ended_by_us(LocalRank(rank)) for rank in (0, 1)] == [False, True]
    handles.fence(L1)
    handles.install(L1, start())
    assert not handles.ended_by_us(L1)
    assert handles.claim_living() == [0, 1]
    assert handles.ended_by_us(L0)


def test_stand_ins_have_not_failed_however_they_end(start: Start) -> None:
    handles = handles_on(start(), stand_ins=True)
    assert handles.ended_by_us(L0)
    handles.install(L0, start())
    assert not handles.ended_by_us(L0)


def test_what_dies_by_itself_is_not_ended_by_us_when_the_rest_of_it_is_killed(start: Start) -> None:
    handler = start()
    handles = handles_on(handler)
    handler.proc.kill()
    await_end(handler)
    handles.kill(L0, signal.SIGKILL)
    assert not handles.ended_by_us(L0)


def test_a_fenced_process_is_collected_when_another_has_its_rank(start: Start) -> None:
    former = start()
    handles = handles_on(former)
    handles.fence(L0)
    handles.install(L0, start())
    await_end(former)
    assert former.proc.returncode is None
    handles.collect_former()
    assert former.proc.returncode == -signal.SIGKILL
    assert handles.exit_status(0) is None


def test_who_ends_the_ranks_alone_reaps_them(start: Start) -> None:
    handler = start()
    handles = handles_on(handler)
    handles.end_here()
    handler.proc.kill()
    await_end(handler)
    assert elsewhere(lambda: handles.exit_status(L0)) == -signal.SIGKILL
    assert handler.proc.returncode is None
    assert handles.exit_status(L0) == handler.proc.returncode == -signal.SIGKILL
