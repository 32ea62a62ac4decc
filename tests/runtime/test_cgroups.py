"""Processes in cgroups with a limit and in frozen ones, and the evidence that a collector finds."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from taskd.core.diagnosis.conditions import condition_of_end, condition_of_hang
from taskd.core.diagnosis.endings import cause, ending_of
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Kind
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.system import cgroups
from taskd.wire.kinds import JobRank, NodeRank

R0 = JobRank(0)

pytestmark = [pytest.mark.root]
ROOT = Path("/sys/fs/cgroup")
LIMIT_BYTES = 64 << 20
LIMIT_S = 20.0
GROW = f"exec python3 -c 'x = bytearray({4 * LIMIT_BYTES})'"
Make = Callable[[str, str, str], Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """Yield a maker of cgroups. Remove them when their processes have ended."""
    made: list[Path] = []

    def one(hierarchy: str, file: str, value: str) -> Path:
        path = ROOT / hierarchy / f"taskd-test-{os.getpid()}-{len(made)}"
        try:
            path.mkdir()
            made.append(path)
            (path / file).write_text(value)
        except OSError as error:
            pytest.skip(f"needs root and a writable cgroup hierarchy at {path.parent}: {error}")
        return path

    yield one
    for path in made:
        end_s = time.monotonic() + LIMIT_S
        while path.exists() and time.monotonic() < end_s:
            with suppress(OSError):
                path.rmdir()


class Shell:
    """Shell that moves into a cgroup on request, and runs a command on a second request."""

    def __init__(self, cgroup: Path, then: str) -> None:
        lines = f"read; echo $$ > {cgroup}/cgroup.procs; echo in; read; {then}"
        self._process = subprocess.Popen(
            ["bash", "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self._process.pid

    def move(self) -> None:
        self.tell()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "in\n"

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def await_end(self) -> None:
        """Wait until it is a zombie."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def killed(collector: EvidenceCollector, shell: Shell) -> Evidence:
    return collector.take(R0, shell.pid, None, node=NodeRank(0), ending=ending_of(-signal.SIGKILL))


@pytest.mark.parametrize("moved", ["before it began", "later, looked at", "later, asked of"])
def test_the_oom_killer(make: Make, moved: str) -> None:
    cgroup, collector = make("memory", "memory.limit_in_bytes", str(LIMIT_BYTES)), EvidenceCollector()
    with Shell(cgroup, GROW) as shell:
        if moved == "before it began":
            shell.move()
        collector.begin(R0, shell.pid, 0)
        if moved != "before it began":
            shell.move()
        if moved == "later, looked at":
            collector.look(R0)
        elif moved == "later, asked of":
            known = collector.take(R0, shell.pid, None, node=NodeRank(0))
            assert known.cgroup is not None
            assert known.cgroup.oom_kills == 0
        shell.tell()
        shell.await_end()
        known = killed(collector, shell)
    assert known.cgroup is not None
    assert (known.cgroup.oom_kills, known.cgroup.limit_bytes) == (1, LIMIT_BYTES)
    assert cause(known, -signal.SIGKILL) == (
        "signal 9 (SIGKILL): the kernel's OOM killer has struck once in its cgroup, whose limit is 64 MiB (oom_kill 1)"
    )
    row = condition_of_end(known)
    assert row is not None
    assert row.kind is Kind.OOM_CGROUP


@pytest.mark.parametrize("began", ["there", "elsewhere"])
def test_what_was_struck_before_is_not_held_against_the_next(make: Make, began: str) -> None:
    """The second process of the rank enters the same cgroup later and is killed from outside."""
    cgroup, collector = make("memory", "memory.limit_in_bytes", str(LIMIT_BYTES)), EvidenceCollector()
    with Shell(cgroup, GROW) as shell:
        if began == "elsewhere":
            collector.begin(R0, shell.pid, 0)
        shell.move()
        if began == "there":
            collector.begin(R0, shell.pid, 0)
        collector.look(R0)
        shell.tell()
        shell.await_end()
        assert killed(collector, shell).cgroup is not None
    assert cgroups.oom_kills(str(cgroup)) == 1
    with Shell(cgroup, "read") as shell:
        collector.begin(R0, shell.pid, 1)
        shell.move()
        collector.take(R0, shell.pid, None, node=NodeRank(0))
        os.kill(shell.pid, signal.SIGKILL)
        shell.await_end()
        known = killed(collector, shell)
    assert known.cgroup is not None
    assert (known.cgroup.oom_kills, known.cgroup.limit_bytes) == (0, LIMIT_BYTES)
    assert cause(known, -signal.SIGKILL) == "signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("hierarchy", "file", "stop", "go"),
    [("freezer", "freezer.state", "FROZEN", "THAWED"), ("unified", "cgroup.freeze", "1", "0")],
)
def test_frozen(make: Make, hierarchy: str, file: str, stop: str, go: str) -> None:
    cgroup, collector = make(hierarchy, file, go), EvidenceCollector()
    with Shell(cgroup, "read") as shell:
        collector.begin(R0, shell.pid, 0)
        shell.move()
        assert not _is_frozen(collector.take(R0, shell.pid, None, node=NodeRank(0)))
        (cgroup / file).write_text(stop)
        try:
            end_s = time.monotonic() + LIMIT_S
            while not _is_frozen(known := collector.take(R0, shell.pid, None, node=NodeRank(0))):
                assert time.monotonic() < end_s, known
            assert condition_of_hang(known).kind is Kind.FROZEN
        finally:
            (cgroup / file).write_text(go)
        while _is_frozen(collector.take(R0, shell.pid, None, node=NodeRank(0))):
            assert time.monotonic() < end_s


def _is_frozen(known: Evidence) -> bool:
    assert known.cgroup is not None
    assert known.cgroup.frozen is not None
    return known.cgroup.frozen


def test_a_limit_of_a_cgroup_around_it_counts(make: Make) -> None:
    outer = make("memory", "memory.limit_in_bytes", str(LIMIT_BYTES))
    inner = outer / "inner"
    inner.mkdir()
    try:
        assert cgroups.limit_bytes(str(inner)) == LIMIT_BYTES
        (inner / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES // 2))
        assert cgroups.limit_bytes(str(inner)) == LIMIT_BYTES // 2
    finally:
        inner.rmdir()
    assert cgroups.limit_bytes(str(ROOT / "memory")) is None
