"""Imports of a template beside ranks that start: after them, and without collections."""

import gc
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.collector import no_collections
from taskd.adaptors.torchrun.standing_back import standing_back

MODULES = 5
WORK = "import time\nend = time.process_time() + 0.02\nwhile time.process_time() < end: pass\n"
LIMIT_S = 60.0


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the names of modules that take 20 ms of a processor each."""
    made = [f"taskd_test_work_{number}" for number in range(MODULES)]
    for name in made:
        (tmp_path / f"{name}.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    yield made
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def links() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


class RecordedPolls:
    """`select.poll`, with the time that each call waited in vain; 0 if there was something to read."""

    def __init__(self) -> None:
        self.in_vain_s: list[float] = []

    def __call__(self) -> "RecordedPolls":
        self._poll = POLL()
        self.register = self._poll.register
        return self

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        found = self._poll.poll(timeout_ms)
        self.in_vain_s.append(0.0 if found else timeout_ms / 1000)
        return found


POLL = select.poll


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> RecordedPolls:
    recorded = RecordedPolls()
    monkeypatch.setattr(select, "poll", recorded)
    return recorded


def import_all(names: list[str], near: socket.socket) -> None:
    """Import all of them. Each module waits as long as it works, as for a processor."""
    with standing_back(near):
        for name in names:
            __import__(name)
            time.sleep(0.02)
        __import__("taskd_test_work_0")


def test_on_a_crowded_machine_a_template_takes_a_quarter(
    names: list[str], links: tuple[socket.socket, socket.socket], waits: RecordedPolls
) -> None:
    import_all(names, links[0])
    assert sum(waits.in_vain_s) > 0.02 * (MODULES - 1) * 3


def test_a_template_that_is_needed_goes_on_at_once(
    names: list[str], links: tuple[socket.socket, socket.socket], waits: RecordedPolls
) -> None:
    links[1].send(b"fork")
    import_all(names, links[0])
    assert waits.in_vain_s == [0.0]


def test_the_finder_is_gone_afterwards(links: tuple[socket.socket, socket.socket]) -> None:
    before = list(sys.meta_path)
    with standing_back(links[0]):
        assert sys.meta_path != before
    assert sys.meta_path == before


def test_no_collection_begins_meanwhile() -> None:
    before, count = gc.get_threshold(), gc.get_stats()[0]["collections"]
    with no_collections():
        kept = [[] for _ in range(10 * before[0])]  # type: ignore[var-annotated]
        assert gc.isenabled()
        assert gc.get_stats()[0]["collections"] == count
    assert kept
    assert gc.get_threshold() == before


def test_a_threshold_that_a_module_sets_stays() -> None:
    before = gc.get_threshold()
    try:
        with no_collections():
            gc.set_threshold(12345, 6, 7)
        assert gc.get_threshold() == (12345, 6, 7)
    finally:
        gc.set_threshold(*before)


def test_a_rank_imports_nothing_of_the_managers_machine() -> None:
    """It would cost the start of each rank 0.15 s."""
    program = (
        "import sys, taskd.adaptors.training.session, taskd.runtime.worker.worker, taskd\n"
        "print([name for name in sys.modules if name.startswith(('taskd.core.recovery', 'taskd.runtime.manager'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert found.stdout.strip() == "[]"
