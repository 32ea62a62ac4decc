"""What the two libraries export and need."""

import subprocess

import pytest

from tests.shim.armed import CORE, GATE

API = {
    "version", "attach", "attached", "guard", "progress", "phase", "pulse_method", "pulse_own", "gil_beat", "enter",
    "leave", "name_comm", "last_words", "probe", "gil_wait", "watch_parent", "break", "mend", "broken", "census",
    "box_create", "box_open", "box_read", "box_events", "box_comms", "box_open_event", "box_fault", "box_request",
    "box_words", "box_await_death", "box_cancel", "box_command", "box_close",
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


def needs(library):
    listing = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    return {line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line}


def test_the_gate_exports_the_two_interposed_functions_and_the_way_to_its_core():
    assert exports(GATE) == {"sigaction", "signal", "taskd_gate_chain"}


def test_the_core_exports_its_interface_and_its_hooks_alone():
    devices = {f"nccl{name}" for name in NCCL} | {f"Hccl{name}" for name in HCCL}
    profiler = {f"ncclProfiler_v{interface}" for interface in (3, 4, 5)}
    assert exports(CORE) == {f"taskd_{name}" for name in API} | GLOO | devices | profiler


def test_the_gate_needs_libc_alone():
    assert needs(GATE) == {"libc.so.6"}


def test_torch_has_what_the_hooks_stand_before():
    torch = pytest.importorskip("torch")
    library = f"{torch.__path__[0]}/lib/libtorch_cpu.so"
    aborts = {f"{BUFFER}::abortWait{side}()" for side in ("Send", "Recv")}
    assert exports(library) >= GLOO | aborts
