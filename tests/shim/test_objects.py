"""The exports and requirements of the two libraries."""

import re
import subprocess
from dataclasses import replace

import pytest

from tests.shim.armed import CORE, GATE
from tests.shim.sources import objects

API = {
    "version", "attach", "attached", "guard", "progress", "phase", "pulse_method", "pulse_own", "gil_beat", "enter",
    "leave", "name_comm", "last_words", "probe", "gil_wait", "watch_parent", "break", "mend", "broken", "census",
    "box_create", "box_open", "box_read", "box_events", "box_comms", "box_open_event", "box_fault", "box_request",
    "frameless_method", "box_words", "box_await_death", "box_cancel", "box_command", "box_close",
}  # fmt: skip
NCCL = {
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send", "Recv", "CommInitRank",
    "CommInitRankConfig", "CommInitRankScalable", "CommSplit", "CommAbort", "CommDestroy",
}  # fmt: skip
HCCL = {
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Barrier", "Send", "Recv",
    "CommInitRootInfo", "CommInitRootInfoConfig", "CreateSubCommConfig", "CommDestroy",
}  # fmt: skip
BUFFER = "gloo::transport::tcp::UnboundBuffer"
VARYING = ("Allgather", "Allgatherv", "Broadcast", "Reduce", "Gather", "Scatter", "Alltoall", "Alltoallv", "Barrier")
GLOO = {
    "gloo::transport::tcp::Device::registerDescriptor(int, int, gloo::transport::tcp::Handler*)",
    "gloo::transport::tcp::Device::unregisterDescriptor(int, gloo::transport::tcp::Handler*)",
    f"{BUFFER}::waitSend(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >)",
    f"{BUFFER}::waitRecv(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >)",
    "gloo::transport::tcp::Context::Context(std::shared_ptr<gloo::transport::tcp::Device>, int, int)",
    f"{BUFFER}::UnboundBuffer(std::shared_ptr<gloo::transport::tcp::Context> const&, void*, unsigned long)",
    f"{BUFFER}::send(int, unsigned long, unsigned long, unsigned long)",
    f"{BUFFER}::recv(int, unsigned long, unsigned long, unsigned long)",
    "gloo::allreduce(gloo::AllreduceOptions const&)",
    *(f"gloo::{name.lower()}(gloo::{name}Options&)" for name in VARYING),
}


def exports(library):
    listing = subprocess.run(
        ["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    return {line.split(maxsplit=2)[2] for line in listing.splitlines()}


def readelf(library, what, pattern):
    listing = subprocess.run(["readelf", what, "-W", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(pattern, listing))


def test_the_gate_exports_the_two_interposed_functions_and_the_way_to_its_core():
    assert exports(GATE) == {"sigaction", "signal", "taskd_gate_chain"}


def test_the_core_exports_its_interface_and_its_hooks_alone():
    devices = {f"nccl{name}" for name in NCCL} | {f"Hccl{name}" for name in HCCL}
    profiler = {f"ncclProfiler_v{interface}" for interface in (3, 4, 5)}
    assert exports(CORE) == {f"taskd_{name}" for name in API} | GLOO | devices | profiler


def test_the_gate_needs_no_library_no_version_and_no_symbol():
    assert objects.gate_flaws(objects.read(GATE)) == []
    assert readelf(GATE, "--dynamic", r"\((NEEDED|VERNEED|VERSYM|VERDEF)\)") == set()
    assert readelf(GATE, "--dyn-syms", r"GLOBAL +\w+ +UND (\w+)") == set()


def test_the_core_runs_with_the_glibc_that_torch_needs():
    asked = objects.read(CORE)
    assert (2, 2) < asked.newest_glibc() <= objects.OLDEST
    versions = readelf(CORE, "--version-info", r"Name: (GLIBC_[\d.]+)")
    assert {version for version in asked.versions if version.startswith("GLIBC_")} == versions
    assert set(asked.libraries) == readelf(CORE, "--dynamic", r"\(NEEDED\).*\[(.+)]") <= {"libc.so.6", "libgcc_s.so.1"}
    undefined = readelf(CORE, "--dyn-syms", r"GLOBAL +\w+ +UND (\w+)")
    assert set(asked.strong) == undefined
    assert objects.platform("linux_x86_64", [objects.read(GATE), asked]) == "manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("change", "plain", "expected"),
    [
        ({"versions": ("GLIBC_2.28", "GCC_3.0")}, "linux_aarch64", "manylinux_2_28_aarch64"),
        ({"versions": ("GLIBC_2.4", "GLIBC_2.34")}, "linux_x86_64", "linux_x86_64"),
        ({"libraries": ("libstdc++.so.7",)}, "linux_x86_64", "linux_x86_64"),
        ({}, "linux_riscv64", "linux_riscv64"),
        ({}, "macosx_14_0_arm64", "macosx_14_0_arm64"),
    ],
)
def test_the_wheel_promises_no_more_than_its_libraries_keep(change, plain, expected):
    assert objects.platform(plain, [replace(objects.read(CORE), **change)]) == expected


def test_what_asks_for_more_is_no_gate():
    flaws = objects.gate_flaws(objects.read(CORE))
    assert "it needs the library libc.so.6" in flaws
    assert "it asks for the version GLIBC_2.17" in flaws
    assert "it needs the symbol dlopen, which is not weak" in flaws


def test_torch_has_what_the_hooks_stand_before():
    torch = pytest.importorskip("torch")
    library = f"{torch.__path__[0]}/lib/libtorch_cpu.so"
    aborts = {f"{BUFFER}::abortWait{side}()" for side in ("Send", "Recv")}
    assert exports(library) >= GLOO | aborts
