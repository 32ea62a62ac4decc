"""`taskd chaos` on a node's CPUs, memory and disk: the amount that it takes, its victim, and the release afterwards."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from taskd.runtime.system.processes import children, read, stat
from tests.cli.chaos import ChaosNode, Process, state
from tests.faults.cgroups import CgroupUnavailableError, small
from tests.shim.armed import end_of, until

MIB = 1 << 20


def busy(node: ChaosNode, playing: Process) -> list[int]:
    """Return the processes that it has started for its load."""
    node.until_said(playing, "pids ")
    return sorted(children(playing.pid))


def ticks(pid: int) -> int:
    known = stat(pid)
    assert known is not None
    return known.used_ticks


def used(pid: int, least_ticks: int) -> bool:
    return ticks(pid) >= least_ticks


def test_the_cpus_are_busy_until_the_end(make_node) -> None:
    node = make_node(1)
    playing = node.play("cpu")
    loads = busy(node, playing)
    mine = os.sched_getaffinity(0)
    until(
        lambda: {frozenset(os.sched_getaffinity(pid)) for pid in loads} == {frozenset({cpu}) for cpu in mine}, "pinned"
    )
    for pid in loads:
        assert (read(f"/proc/{pid}/comm") or "").strip() == "taskd-busy"
        until(partial(used, pid, 10), "it is busy")
    told = node.end(playing)
    assert f"{len(loads)} processes keep them busy 90 % of the time" in told
    assert re.search(rf"undone: {len(loads)} busy processes have ended; they had \d+\.\d s of processor time", told)
    assert [state(pid) for pid in loads] == [""] * len(loads)


def test_a_share_is_not_exceeded(make_node) -> None:
    node = make_node(1)
    playing = node.play("cpu", "--percent", 5)
    pid = busy(node, playing)[0]
    begun, begun_ticks = float((read("/proc/uptime") or "").split()[0]), ticks(pid)
    until(lambda: ticks(pid) >= begun_ticks + 10, "it is busy")
    took_s = float((read("/proc/uptime") or "").split()[0]) - begun
    assert took_s > 1.0  # 10 ticks are 0.1 s, which are due in 2 s
    node.end(playing)


def test_only_the_cpus_of_the_job_are_loaded(make_node) -> None:
    node = make_node(0)
    chosen = min(os.sched_getaffinity(0))
    os.sched_setaffinity(node.agent.pid, {chosen})
    playing = node.play("cpu")
    (pid,) = busy(node, playing)
    until(lambda: os.sched_getaffinity(pid) == {chosen}, "it is pinned")
    assert f"CPUs {chosen}: 1 processes" in node.end(playing)


@pytest.mark.parametrize("words", [("cpu",), ("memory", "--mib", "16")])
def test_no_load_outlives_the_command(words, make_node) -> None:
    node = make_node(1)
    playing = node.play(*words)
    with ExitStack() as ends:
        ended = [ends.enter_context(end_of(pid)) for pid in busy(node, playing)]
        playing.kill()
        playing.wait()
        assert all(one(20) for one in ended)


def test_memory_is_taken_and_given_back(make_node) -> None:
    node = make_node(1)
    playing = node.play("memory", "--mib", 32)
    (pid,) = busy(node, playing)
    node.until_said(playing, "has all of its 32 MiB")
    resident = next(line for line in (read(f"/proc/{pid}/status") or "").splitlines() if line.startswith("VmRSS:"))
    assert int(resident.split()[1]) >= 32 * 1024
    assert read(f"/proc/{pid}/oom_score_adj") == "1000\n"
    told = node.end(playing)
    assert f"undone: process {pid} has ended, its memory is free" in told
    assert state(pid) == ""


def test_without_a_limit_nobody_else_may_be_the_victim(make_node) -> None:
    node = make_node(1)
    status, told = node.run("memory", "--mib", 32, "--any-victim", "--dry-run")
    if "if that is too much" in told:
        pytest.skip("this machine's processes live in a cgroup with a memory limit")
    assert status == 1
    assert "the job's cgroup has no memory limit, the kernel could kill anybody's process" in told


@pytest.mark.root
def test_in_the_jobs_cgroup_its_own_process_is_the_victim(make_node, leak_mark) -> None:
    node = make_node(1)
    with ExitStack() as ends:
        try:
            gate = ends.enter_context(small(f"chaos-{leak_mark[:8]}", 128 * MIB))
        except CgroupUnavailableError as error:
            pytest.skip(str(error))
        job = (node.agent.pid, node.pids["rank 0"])
        for pid in job:
            gate.write_text(str(pid))
            os.kill(pid, signal.SIGSTOP)  # while the victim's pages are given back, a process that asks for one is next
        status, told = node.run("memory", "--mib", 256)
        for pid in job:
            os.kill(pid, signal.SIGCONT)
        assert status == 0, told
        assert re.search(r"takes 256 MiB of the \d+ MiB free in the job's cgroup", told)
        victim = re.search(r"pids (\d+)", told)
        assert victim is not None
        assert f"process {victim[1]} was killed for its memory (OOM)" in told
        assert "has all of its" not in told
        for pid in job:
            assert state(pid) in ("R", "S")
        playing = node.play("cpu")
        where = read(f"/proc/{node.agent.pid}/cgroup")
        for pid in busy(node, playing):
            assert read(f"/proc/{pid}/cgroup") == where
        node.end(playing)
        node.agent.terminate()
        node.agent.wait()


@pytest.fixture
def disk(run_dir: Path) -> Iterator[Path]:
    """Yield a file system of 64 MiB."""
    path = run_dir / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "chaos", path], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted: {done.stderr.decode()}")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_disk_is_filled_by_a_file_without_a_name(number, make_node, disk) -> None:
    node = make_node(1)
    playing = node.play("disk", "--mib", 48, "--directory", disk)

    def free_mib() -> int:
        known = os.statvfs(disk)
        return known.f_bfree * known.f_frsize // MIB

    until(lambda: free_mib() == 16, "48 of 64 MiB are taken")
    assert not list(disk.iterdir())
    told = node.end(playing, number)
    assert f"takes 48 MiB of the 64 MiB free on the disk of {disk}" in told
    assert free_mib() == 64


@pytest.mark.root
def test_a_disk_is_filled_to_the_brim_only_by_word(make_node, disk) -> None:
    node = make_node(1)
    status, told = node.run("disk", "--percent", 99, "--directory", disk)
    assert status == 1
    assert "leave less than 5 %" in told
    assert "say --yes" in told
    status, told = node.run("disk", "--mib", 65, "--directory", disk, "--yes")
    assert status == 1
    assert "cannot give 65 MiB: No space left on device; ask for less" in told
    status, told = node.run("disk", "--percent", 99, "--directory", disk, "--yes", "--for", 0.1)
    assert status == 0, told
    status, told = node.run("disk", "--mib", 1, "--directory", disk / "nowhere")
    assert status == 1
    assert "found no directory" in told
