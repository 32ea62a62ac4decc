"""A check process: its orders and answers, cold and forked, in time and late."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from taskd.core.nodecheck.probes import merge_own
from taskd.wire.checks import Trial
from taskd.wire.probes import ProbeOrder, ProbeResult
from tests.shim.armed import until

CPU_ROOT = Path("/sys/fs/cgroup/cpu")
QUOTA_US, PERIOD_US = 20_000, 100_000
PROGRAMS = Path(__file__).with_name("programs")
FORKED = ("python", PROGRAMS / "forked.py")


def ask(text: bytes, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "taskd.adaptors.nodecheck", *arguments]
    return subprocess.run(command, input=text, capture_output=True, check=False, timeout=60)


def order(**fields) -> bytes:
    return msgspec.json.encode(ProbeOrder(**fields))


def test_a_cold_process_answers_once(run_dir: Path) -> None:
    done = ask(order(own=True, run_dir=bytes(run_dir), local_world_size=2))
    assert (done.returncode, done.stderr) == (0, b"")
    result = msgspec.json.decode(done.stdout, type=ProbeResult)
    assert result.trial is None
    own = result.own
    assert own is not None
    assert own.ok, own.cause
    assert min(own.compute_tflops, own.memory_gbps, own.loopback_gbps, own.disk_mbps, own.elapsed_s) > 0
    assert own.versions["python"] == sys.version.split()[0]
    assert os.listdir(run_dir) == []


def test_only_the_first_rank_tries_what_the_node_has_once(run_dir: Path) -> None:
    own = msgspec.json.decode(ask(order(own=True, run_dir=bytes(run_dir), local_rank=1)).stdout, type=ProbeResult).own
    assert own is not None
    assert own.ok
    assert own.loopback_gbps == own.disk_mbps == 0.0


def test_one_failure_leaves_the_other_probes(run_dir: Path) -> None:
    own = msgspec.json.decode(ask(order(own=True, run_dir=bytes(run_dir / "gone"))).stdout, type=ProbeResult).own
    assert own is not None
    assert not own.ok
    assert own.cause.startswith(f"disk: no file can be written in {run_dir}/gone (No such file or directory)")
    assert min(own.compute_tflops, own.memory_gbps, own.loopback_gbps) > 0


def test_no_device_fails_both_parts() -> None:
    trial = Trial(peer="b", name="t", first=True, store_host="127.0.0.1", store_port=1)
    result = msgspec.json.decode(ask(order(own=True, trial=trial, device="npu")).stdout, type=ProbeResult)
    assert result.own is not None
    assert result.trial is not None
    assert not result.own.ok
    assert not result.trial.ok
    assert result.own.cause == result.trial.cause
    assert result.own.cause.startswith("device: no npu device can be used: ")


@pytest.mark.parametrize("text", [b"", b"{", b'{"own": 3}', b"[]"])
def test_no_order(text: bytes) -> None:
    done = ask(text)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"expected a ProbeOrder as JSON" in done.stderr


@pytest.mark.parametrize("descriptor", ["x", "77"])
def test_no_descriptor(descriptor: str) -> None:
    done = ask(order(), descriptor)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


@pytest.fixture
def mute() -> Iterator[int]:
    """Yield the port of a server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_store_that_never_answers_costs_the_timeout(mute: int) -> None:
    trial = Trial(peer="b", name="t", first=False, store_host="127.0.0.1", store_port=mute)
    result = msgspec.json.decode(ask(order(trial=trial, timeout_s=4)).stdout, type=ProbeResult)
    assert result.trial is not None
    assert not result.trial.ok
    assert result.trial.elapsed_s <= 4
    assert "talking to the store" in result.trial.cause or "forming the group" in result.trial.cause


def test_a_disk_that_never_answers_costs_the_timeout_and_is_named(run_dir: Path, launcher) -> None:
    """The process waits in `open` of a pipe without a reader, as on a dead mount. A pipe is available anywhere."""
    pipe = run_dir / "mount"
    os.mkfifo(pipe)
    status, output = launcher.run(["python", PROGRAMS / "mute_disk.py", pipe])
    own = msgspec.json.decode(output, type=ProbeResult).own
    assert status == 0
    assert own is not None
    assert not own.ok
    assert own.cause.startswith("disk did not end within the 5 s")
    assert own.compute_tflops > 0, "what was found before is told"
    assert own.elapsed_s <= 5


@pytest.mark.parametrize(
    ("what", "timeout_s", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 30, "its check process ended with signal 9 (SIGKILL) after "),
        ("os._exit(3)", 30, "its check process ended with exit code 3 after "),
        ("os.kill(os.getpid(), signal.SIGSTOP)", 8, "its check process had not answered after "),
    ],
)
def test_a_process_that_gives_no_answer(launcher, what: str, timeout_s: float, told: str) -> None:
    status, output = launcher.run([*FORKED, str(timeout_s), f"1={what}"])
    assert status == 0, output
    results = msgspec.json.decode(output, type=list[ProbeResult])
    assert [result.local_rank for result in results] == [0, 1, 2]
    owns = [result.own for result in results]
    assert [own is not None and own.ok for own in owns] == [True, False, True]
    merged = merge_own(results)
    assert merged is not None
    assert merged.cause.startswith(f"local rank 1: {told}")
    assert merged.compute_tflops > 0


def test_the_processes_end_with_the_one_that_forked_them(launcher, leak_mark: str) -> None:
    acts = [f"{rank}=time.sleep(60)" for rank in range(3)]
    process = launcher.start([*FORKED, "60", *acts])
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(path.read_text().split()) == 3, "three are there")
    forked = [int(pid) for pid in path.read_text().split()]
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in forked), "all are gone")


@pytest.mark.root
def test_a_cpu_quota_shows_in_the_rate_and_is_told(run_dir: Path, launcher) -> None:
    group = CPU_ROOT / f"taskd-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
    except OSError as error:
        pytest.skip(f"no CPU cgroups of version 1 on this machine: {error}")
    fields = order(own=True, run_dir=bytes(run_dir), local_world_size=os.cpu_count() or 1).decode()
    try:
        status, output = launcher.run(["python", PROGRAMS / "under_quota.py", fields, group / "cgroup.procs"])
    finally:
        group.rmdir()
    assert status == 0, output
    result, core_tflops = msgspec.json.decode(output, type=tuple[ProbeResult, float])
    held = result.own
    assert held is not None
    assert held.ok, held.cause
    assert held.cause.startswith(f"the CPU quota of {group} stopped it while it computed")
    assert held.compute_tflops < 0.7 * core_tflops
