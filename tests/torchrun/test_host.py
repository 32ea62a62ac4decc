"""torchrun's main thread sleeps while all ranks run, and is awake as soon as something happens to one."""

import signal
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from taskd.adaptors.torchrun import host as hosts
from taskd.adaptors.torchrun.host import TorchrunHost
from taskd.runtime.agent.ports import Command
from taskd.wire.kinds import LocalRank

L0 = LocalRank(0)
LIMIT_S = 20.0


@pytest.fixture
def handler() -> Iterator[SubprocessHandler]:
    made = SubprocessHandler("sleep", ("infinity",), {}, None, None, 0, None)
    yield made
    made.proc.kill()
    made.proc.wait()


@pytest.fixture
def host(handler: SubprocessHandler, monkeypatch: pytest.MonkeyPatch) -> TorchrunHost:
    """Return the host of one rank. It would sleep for longer than a test waits."""
    monkeypatch.setattr(hosts, "_REST_S", 10 * LIMIT_S)
    context: Any = SimpleNamespace(
        subprocess_handlers={0: handler},
        stdouts={0: ""},
        stderrs={0: ""},
        error_files={0: ""},
        tail_logs=[],
        _tail_logs=[],
        _stdout_tail=SimpleNamespace(_log_files={}, _finished_events={}, _name="", _dst=None),
        _stderr_tail=SimpleNamespace(_log_files={}, _finished_events={}, _name="", _dst=None),
        _running_local_ranks={0},
        _failures={},
    )
    group: Any = SimpleNamespace(workers=[SimpleNamespace(local_rank=0, global_rank=0)])
    template: Any = None  # no standby is requested
    return TorchrunHost(context, group, {L0: Command(("sleep",), False, "")}, template, lambda: None, lambda: False)


def asleep(host: TorchrunHost) -> Thread:
    """Return a thread that waits as torchrun's does, once it does."""
    thread = Thread(target=lambda: host.await_turn(formed=True), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    return thread


def test_the_end_of_a_rank_wakes_it(host: TorchrunHost, handler: SubprocessHandler) -> None:
    thread = asleep(host)
    handler.proc.kill()
    handler.proc.wait()
    assert host.exit_status(L0) == -signal.SIGKILL  # the agent's thread has detected the death
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    host.await_turn(formed=True)  # torchrun polls at its own interval until the rank runs again


def test_a_change_of_who_decides_wakes_it(host: TorchrunHost) -> None:
    thread = asleep(host)
    host.stock()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    host.await_turn(formed=True)


def test_it_does_not_sleep_while_the_job_forms(host: TorchrunHost) -> None:
    host.await_turn(formed=False)
