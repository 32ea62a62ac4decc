"""Pidfds where this Python, or the kernel, does not offer them."""

import ast
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.errors import ChaosError
from taskd.runtime.chaos.target import open_handle
from taskd.runtime.system import pidfd, segments
from taskd.runtime.system.pidfd import ProcessHandle, make_pidfd, signal_pidfd
from taskd.runtime.system.segments import await_removal

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0
NAMES = ("pidfd_open", "pidfd_send_signal")
AS_CONDA = """
import os, signal
del os.pidfd_open, signal.pidfd_send_signal
"""
USES = """
import importlib, subprocess
from pathlib import Path
for name in {modules!r}:
    importlib.import_module(name)
from taskd.adaptors.torchrun.cleaners import Cleaners
from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.chaos.load import start_child
from taskd.runtime.chaos.target import send, target
from taskd.runtime.system.pidfd import ProcessHandle, await_end, open_pidfd
from taskd.runtime.system.segments import await_removal

def sleeper():
    return subprocess.Popen(["sleep", "infinity"], start_new_session=True)

first = sleeper()
watch = DeathWatch()
watch.watch(first.pid, None)
assert not watch._looked_at, "it has a pidfd"
handle = ProcessHandle(first.pid)
assert handle.is_held and handle.runs()
handle.kill(signal.SIGTERM)
await_end(first.pid, None)
assert not handle.runs() and first.wait() == -signal.SIGTERM
handle.close()
assert [end.pid for end in watch.events()] == [first.pid]
watch.close()
try:
    open_pidfd(first.pid)
except ProcessLookupError:
    pass
else:
    raise AssertionError("it was collected")
second = sleeper()
known = target(second.pid, "a process")
assert send(known, signal.SIGKILL, lambda _pid: True)
assert second.wait() == -signal.SIGKILL
third = sleeper()
Cleaners().kill_group(third.pid)
assert third.wait() == -signal.SIGKILL
start_child("load", lambda: signal.pause(), os.getpid()).end()
await_removal((os.getpid(),), 0.01)
print("used")
"""


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "infinity"])
    yield process
    process.kill()
    process.wait()


def naming() -> set[Path]:
    """Return the modules of taskd that name one of Python's two functions."""
    found = set()
    for path in (ROOT / "taskd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=name) if name in NAMES:
                    found.add(path.relative_to(ROOT))
    return found


def using() -> list[str]:
    """Return the modules of taskd that use pidfds in any way, by their dotted names."""
    paths = (path for path in (ROOT / "taskd").rglob("*.py") if "system.pidfd" in path.read_text())
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


def test_one_module_names_the_functions_that_conda_lacks() -> None:
    assert naming() == {Path("taskd/runtime/system/pidfd.py")}


def test_a_python_without_the_two_functions_has_pidfds() -> None:
    """conda's Python is such a build, for an older C library."""
    modules = using()
    assert "taskd.adaptors.torchrun.cleaners" in modules
    ran = subprocess.run(
        [sys.executable, "-c", AS_CONDA + USES.format(modules=modules)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S * 3, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == ("used\n", 0), ran.stderr


@pytest.mark.parametrize("lacks", [(), NAMES], ids=["python's", "by number"])
def test_errors_are_the_kernels(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...]
) -> None:
    for name in lacks:
        monkeypatch.delattr(os if name == "pidfd_open" else signal, name)
    descriptor = make_pidfd(sleeper.pid)
    assert not os.get_inheritable(descriptor)
    signal_pidfd(descriptor, signal.SIGTERM)
    assert sleeper.wait(LIMIT_S) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        signal_pidfd(descriptor, signal.SIGTERM)
    os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        make_pidfd(sleeper.pid)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        make_pidfd(-1)


def refuse(reason: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "pidfd_open", refused)


@pytest.mark.parametrize("reason", [errno.EPERM, errno.ENOSYS, errno.EMFILE], ids=errno.errorcode.get)
def test_a_rank_waits_for_cleaners_that_have_no_pidfd(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """The reason is a seccomp profile, an older kernel, or too many open files."""
    monkeypatch.setattr(segments, "_SEGMENTS", tmp_path)
    refuse(reason, monkeypatch)
    (tmp_path / "fixed").touch()
    begun_s = time.monotonic()
    await_removal((sleeper.pid,), 0.2)
    assert time.monotonic() - begun_s >= 0.2, "it runs, and may still remove the segment"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    begun_s = time.monotonic()
    await_removal((sleeper.pid,), LIMIT_S)
    assert time.monotonic() - begun_s < LIMIT_S / 2, "it has ended"


def test_a_scenario_that_needs_a_pidfd_says_so(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(errno.ENOSYS, monkeypatch)
    with pytest.raises(ChaosError, match=r"no pidfd of process \d+ .* expected Linux 5\.3"):
        open_handle(sleeper.pid)


def test_a_refused_signal_call_is_made_up_for(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_descriptor: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(pidfd, "signal_pidfd", refused)
    handle = ProcessHandle(sleeper.pid)
    handle.kill(signal.SIGKILL)
    assert sleeper.wait(LIMIT_S) == -signal.SIGKILL
    handle.close()
