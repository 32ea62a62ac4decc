"""How a process has ended, in words. The details of a box are tried end to end (`tests/e2e/test_ends.py`)."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.endings import Endings, in_words, memory_cgroup, oom_kills

pytestmark = pytest.mark.timeout(60)
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 64 << 20


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-99, "signal 99")]
)
def test_statuses(status: int, words: str) -> None:
    assert in_words(status) == words


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit."""
    path = MEMORY / f"taskd-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"needs root and the memory controller of cgroup v1 at {MEMORY}: {error}")
    yield path
    path.rmdir()


@pytest.mark.root
def test_a_process_that_the_oom_killer_took(cgroup: Path) -> None:
    grow = f"exec python3 -c 'x = bytearray({4 * LIMIT_BYTES})'"
    process = subprocess.Popen(["bash", "-c", f"echo $$ > {cgroup}/cgroup.procs; read; {grow}"], stdin=subprocess.PIPE)
    try:
        endings = Endings()
        while memory_cgroup(process.pid) != cgroup:
            assert process.poll() is None
        assert oom_kills(cgroup) == 0
        endings.begin(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        text = endings.describe(process.pid, -signal.SIGKILL, None, gone=True)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert text.startswith("signal 9 (SIGKILL), as the OOM killer does: it has struck 1 times in ")


def test_a_process_that_was_killed_otherwise() -> None:
    process = subprocess.Popen(["sleep", "60"])
    endings = Endings()
    endings.begin(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert endings.describe(process.pid, -signal.SIGKILL, None, gone=True) == "signal 9 (SIGKILL)"
    process.wait()
