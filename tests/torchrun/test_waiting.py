"""Nodes that wait in torch's dynamic rendezvous while taskd leads the job: no rank is restarted for them."""

import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from taskd.adaptors.torchrun.entry import attempt
from taskd.adaptors.torchrun.waiting import set_aside, withdraw
from tests.e2e.job import SCRIPTS, Job, Process
from tests.e2e.test_manager import start_manager
from tests.launch import Launcher, free_port

HEED_S = 2.5
"""Time in which torch would react. It queries the store for waiting nodes when it polls the ranks, once a second."""
LIMIT_S = 20.0
RUN_ID = "late"


class Names:
    """Content of a c10d rendezvous: the number of names in each list."""

    def __init__(self, store: TCPStore) -> None:
        self._backend = C10dRendezvousBackend(store, RUN_ID)

    @classmethod
    def at(cls, port: int) -> "Names":
        return cls(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))

    def of(self, part: str) -> int:
        found = self._backend.get_state()
        return 0 if found is None else len(getattr(pickle.loads(found[0]), part))

    def waiting(self) -> int:
        return self.of("wait_list") + self.of("redundancy_list")


def until(look: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not look():
        assert time.monotonic() < end_s, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.02)


class Managed:
    """A job of one place with `--nnodes=1:2`, and a late node."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.job = Job(launcher, folder, 1)
        self._port, self.manager_port = free_port(), free_port()
        self._env = {**self.job.environment(), "TASKD_MANAGER": f"127.0.0.1:{self.manager_port}", "TASKD_STANDBY": "0"}

    def start(self, **env: str | None) -> Process:
        """Start one more node. `env` is its own."""
        own = ("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}")
        more = (f"--rdzv-id={RUN_ID}", "--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1")
        plan = f'{{"folder": "{self.job.folder}", "points": [{{"name": "run", "rank": 0, "at": ["run"]}}]}}'
        command = ["python", "-m", "torch.distributed.run", *own, *more, str(SCRIPTS / "hold.py"), plan]
        return self.job.launcher.start(command, env={**self._env, **env})

    def begin(self, **env: str | None) -> Names:
        """Start the manager and the first node. Return when its rank runs and the manager knows that."""
        self.manager = start_manager(self.job, self.manager_port)
        self.job.watch(self.start(**env))
        self.job.held("run")
        self.job.wait(lambda: self.job.pids, "the manager's view of the rank")
        return Names.at(self._port)

    def check_undisturbed(self) -> None:
        """Check that the first node's rank has its first process, and ends well."""
        assert [path.name for path in self.job.folder.glob("seen-*")] == ["seen-0-0"], self.job.output
        self.job.release("run")
        assert self.job.end() == 0
        assert "new nodes from group_rank" not in self.job.output


@pytest.fixture
def managed(launcher: Launcher, run_dir: Path) -> Managed:
    return Managed(launcher, run_dir)


def test_a_living_job_is_not_restarted_for_a_node_that_waits(managed: Managed) -> None:
    """A torchrun without taskd stays on the list, as long as it likes."""
    names = managed.begin()
    late = managed.start(TASKD_PROCESS_ENABLE=None)
    until(lambda: names.of("wait_list") == 1, "the late node on the list")
    time.sleep(HEED_S)
    assert names.of("wait_list") == 1
    managed.check_undisturbed()
    assert late.wait(LIMIT_S) == 1, "torch closes the rendezvous with the job"


@pytest.mark.thorough
def test_a_node_that_waits_for_a_place_leaves_the_list(managed: Managed) -> None:
    names = managed.begin()
    late = managed.start()
    managed.job.wait(lambda: managed.job.named("node waits"), "the late node at the manager")
    until(lambda: "this node waits for a place in it" in managed.job.launcher.output(late), "its own word")
    until(lambda: not names.waiting(), "an empty list")
    time.sleep(HEED_S)
    assert not names.waiting(), "nobody comes back to it"
    managed.check_undisturbed()
    assert late.wait(LIMIT_S) == 0


@pytest.mark.thorough
def test_torchruns_own_behaviour_when_it_has_taken_over(managed: Managed) -> None:
    """The manager is gone. All ranks start again together with a late node."""
    env = {"TASKD_MANAGER_WAIT_S": "0.5", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    managed.begin(**env)
    managed.manager.kill()
    managed.manager.wait(LIMIT_S)
    managed.job.says("torchrun's own behaviour takes over")
    late = managed.start(**env, TASKD_PROCESS_ENABLE=None)
    assert managed.job.end() == 0
    assert late.wait(LIMIT_S) == 0
    assert "RANK" in (managed.job.folder / "seen-1-0").read_text()


# ---- the list itself


def serve() -> TCPStore:
    """Start a store. It is no fixture, since pytest would keep it until the test's leaks are counted."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module", autouse=True)
def _first_server() -> None:
    """Create the objects that torch's servers share and keep for good, before any leak is counted."""
    serve()


def handler(store: TCPStore, least: int, most: int) -> DynamicRendezvousHandler:
    made = DynamicRendezvousHandler.from_backend(
        RUN_ID,
        store,
        C10dRendezvousBackend(store, RUN_ID),
        least,
        most,
        local_addr="127.0.0.1",
        timeout=RendezvousTimeout(last_call=timedelta(milliseconds=1)),
    )
    assert isinstance(made, DynamicRendezvousHandler)
    return made


@pytest.mark.parametrize(
    ("least", "most", "alone", "part"),
    [(1, 2, False, "wait_list"), (1, 1, False, "redundancy_list"), (2, 2, True, "participants")],
)
def test_a_rendezvous_left_half_way(least: int, most: int, alone: bool, part: str) -> None:
    """Its thread ends, no name of it is left, and the same node may come again."""
    store = serve()
    names, first, second = Names(store), handler(store, least, most), handler(store, least, most)
    if not alone:
        first.next_rendezvous()
    before = names.of(part)

    def join() -> None:
        with suppress(RendezvousError):
            second.next_rendezvous()

    for _ in range(2):
        thread = threading.Thread(target=join)
        thread.start()
        until(lambda: names.of(part) == before + 1, f"a name among the {part}")
        withdraw(second, thread)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        until(lambda: names.of(part) == before, "an end of it")
        until(lambda: all(one.name != "taskd-withdraw" for one in threading.enumerate()), "the end of its thread")
    assert first.shutdown()


def test_a_rendezvous_that_is_over() -> None:
    """A node that has come into the world meanwhile leaves it, too."""
    store = serve()
    names, second = Names(store), handler(store, 1, 2)
    thread = threading.Thread(target=second.next_rendezvous)
    thread.start()
    thread.join(LIMIT_S)
    assert names.of("participants") == 1
    withdraw(second, thread)
    until(lambda: names.of("participants") == 0, "an end of it")
    until(lambda: all(one.name != "taskd-withdraw" for one in threading.enumerate()), "the end of its thread")


def test_set_aside() -> None:
    """It is set aside only while taskd leads. The store is not queried then."""
    asked: list[int] = []
    leads = False

    def count() -> int:
        asked.append(3)
        return 3

    foreign: Any = SimpleNamespace(num_nodes_waiting=count, shutdown=lambda: True)
    set_aside(foreign, lambda: leads)
    assert foreign.num_nodes_waiting() == 3
    leads = True
    assert foreign.num_nodes_waiting() == 0
    assert asked == [3]
    assert foreign.shutdown()


SERVER = Path(__file__).with_name("programs") / "store_server.py"


def test_a_lost_store_is_no_complaint_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """This holds though this node has sent no heartbeat since: it had left the list."""
    with subprocess.Popen([sys.executable, SERVER], stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[1])
        left = handler(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False), 1, 1)
        set_aside(left, lambda: True)
        server.kill()
    left.shutdown()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    until(lambda: all(one.name != "taskd-rendezvous-end" for one in threading.enumerate()), "the end of its thread")


def test_at_the_limit_of_threads_torchruns_own_rendezvous_forms_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def form(group: Any) -> None:
        group.group_rank = 1

    class Unasked:
        outlook = None

    group, runtime, rendezvous = cast("Any", WorkerGroup(cast("Any", Spec))), cast("Any", Unasked()), StaticRendezvous()
    set_aside(cast("Any", rendezvous), lambda: True)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    formed: Any = attempt(form, group, runtime)
    assert (formed.group_rank, group.group_rank) == (1, None)
    assert not rendezvous.shutdown()
    assert rendezvous.shut == 0, "it may block"


class Spec:
    local_world_size = 1


class StaticRendezvous:
    """The part of a handler that is used."""

    shut = 0

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self.shut += 1
        return True
