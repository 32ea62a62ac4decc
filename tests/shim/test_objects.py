"""What the two libraries export and need."""

import subprocess

import pytest

from tests.shim.armed import CORE, GATE

pytestmark = pytest.mark.timeout(20)

API = {
    "version", "attach", "attached", "progress", "phase", "pulse_method", "pulse_own", "gil_beat", "enter", "leave",
    "last_words", "probe", "gil_wait", "watch_parent", "break", "mend", "broken", "census", "box_create", "box_open", "box_read",
    "box_events", "box_open_event", "box_fault", "box_request", "box_words", "box_await_death", "box_cancel", "box_command", "box_close",
}  # fmt: skip
GLOO = {
    "gloo::transport::tcp::Device::registerDescriptor(int, int, gloo::transport::tcp::Handler*)",
    "gloo::transport::tcp::Device::unregisterDescriptor(int, gloo::transport::tcp::Handler*)",
    "gloo::transport::tcp::UnboundBuffer::waitSend(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >)",
    "gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >)",
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


def test_the_core_exports_its_interface_and_the_hooks_of_gloo_alone():
    assert exports(CORE) == {f"taskd_{name}" for name in API} | GLOO


def test_the_gate_needs_libc_alone():
    assert needs(GATE) == {"libc.so.6"}


def test_torch_has_what_the_hooks_stand_before():
    torch = pytest.importorskip("torch")
    library = f"{torch.__path__[0]}/lib/libtorch_cpu.so"
    aborts = {f"gloo::transport::tcp::UnboundBuffer::abortWait{side}()" for side in ("Send", "Recv")}
    assert exports(library) >= GLOO | aborts
