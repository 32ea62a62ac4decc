"""Each probe by itself: its measurement, and the defects that it finds."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from taskd.adaptors.nodecheck import compute as computing
from taskd.adaptors.nodecheck import disk as disks
from taskd.adaptors.nodecheck.devices import Device, find, one_line, versions
from taskd.adaptors.nodecheck.loopback import loopback, own_address
from taskd.adaptors.nodecheck.memory import memory
from taskd.errors import ProbeError

CPU = Device("cpu", 0)
SIZE_BYTES = 4 << 20


def test_a_product_is_what_it_must_be() -> None:
    product = computing._Product.on(torch.device("cpu"))
    product.run()
    product.check()
    exact = product.left.double() @ product.right.double()
    assert torch.equal(exact, product.expected.double())
    assert len(product.expected.unique()) > 8, "a product of few values would hide what is wrong"


@pytest.mark.parametrize("place", [(0, 0), (200, 7), (383, 383)])
def test_one_wrong_factor_is_seen(place: tuple[int, int]) -> None:
    product = computing._Product.on(torch.device("cpu"))
    product.left[place] = -product.left[place]
    product.run()
    with pytest.raises(ProbeError, match="computes wrongly: 384 of 147456 elements"):
        product.check()


def test_the_product_of_an_accelerator_is_exact_in_its_type() -> None:
    places = torch.arange(computing._DEVICE_SIZE)
    weights = torch.where(places < (len(places) + computing._BALANCE) // 2, 1.0, -1.0)
    assert int(weights.sum()) == computing._BALANCE
    values = (1 + torch.arange(4) / 4).double()
    products = torch.outer(values, values) * computing._BALANCE
    assert torch.equal(products.bfloat16().double(), products)


def test_compute_and_memory_give_rates() -> None:
    found = computing.compute(CPU, 2)
    assert 1e-6 < found.tflops < 100
    assert 0 <= found.waited <= 1.5
    assert 1e-3 < memory(CPU) < 10_000


def test_loopback_at_any_own_address() -> None:
    assert loopback("127.0.0.1") > 0
    assert loopback("") > 0
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        assert loopback("::1") > 0


def test_a_stranger_at_the_loopback_port_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, strangers = socket.create_connection, list[socket.socket]()

    def second(address: tuple[str, int], limit_s: float) -> socket.socket:
        strangers.append(connect(address, limit_s))
        strangers[-1].sendall(b"x" * 5000)
        return connect(address, limit_s)

    monkeypatch.setattr(socket, "create_connection", second)
    assert loopback("127.0.0.1") > 0
    assert len(strangers) == 1
    for one in strangers:
        one.close()


def test_loopback_at_an_address_of_somebody_else() -> None:
    with pytest.raises(ProbeError, match=r"to itself at 192\.0\.2\.1 \("):
        loopback("192.0.2.1")


def test_the_address_is_that_of_the_chosen_interface(monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    with pytest.raises(ProbeError, match=r"found no interface 'eth77' .* expected one of .*\blo\b"):
        own_address()


def test_a_disk_that_is_well_and_nothing_left(run_dir: Path) -> None:
    assert disks.disk(str(run_dir)) > 0
    assert os.listdir(run_dir) == []


def test_a_disk_without_nameless_files(run_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_RDWR | os.O_DIRECTORY)  # a kernel without them refuses that
    assert disks.disk(str(run_dir)) > 0
    assert os.listdir(run_dir) == []


def test_a_directory_that_is_not_there(run_dir: Path) -> None:
    with pytest.raises(ProbeError, match=r"No such file or directory\).*TASKD_RUN_DIR"):
        disks.disk(str(run_dir / "gone"))


Mount = Callable[[str], Path]


@pytest.fixture
def mounted(run_dir: Path) -> Iterator[Mount]:
    """Yield a function that mounts a tmpfs with these options."""
    place = run_dir / "mount"
    place.mkdir()
    made = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "check", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no mounts on this machine: {done.stderr.strip()}")
        made.append(place)
        return place

    yield mount
    for one in made:
        subprocess.run(["umount", one], check=True)


@pytest.mark.root
def test_a_full_disk(mounted: Mount) -> None:
    place = mounted("size=1m")
    with pytest.raises(ProbeError, match=r"No space left on device\), expected 4 MiB to be: the disk is full"):
        disks.disk(str(place))
    assert os.listdir(place) == []
    assert os.statvfs(place).f_bfree == os.statvfs(place).f_blocks


@pytest.mark.root
def test_a_disk_that_is_read_only(mounted: Mount) -> None:
    place = mounted("size=8m,ro")
    with pytest.raises(ProbeError, match=r"Read-only file system\).*mounted read-only"):
        disks.disk(str(place))


def test_devices() -> None:
    assert find("cpu", 3, 8) == Device("cpu", 3)
    assert CPU.backend == "gloo"
    found = versions(CPU)
    assert found["torch"] == torch.__version__
    assert type(found["torch"]) is str
    assert {"python", "taskd", "backend", "kernel", "machine", "device"} <= found.keys()
    with pytest.raises(ProbeError, match="found device 'tpu', expected one of cpu, cuda, npu"):
        find("tpu", 0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
def test_an_accelerator_that_is_not_there() -> None:
    with pytest.raises(ProbeError, match=r"no cuda device can be used: ."):
        find("cuda", 0, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator() -> None:
    device = find("cuda", 0, 1)
    device.select()
    assert computing.compute(device, 1).tflops > 1
    assert memory(device) > 1
    with pytest.raises(ProbeError, match="one for each local rank"):
        find("cuda", 0, 1000)


def test_an_error_becomes_one_line() -> None:
    text = "first\n  second\nException raised from f at x.cpp:1 (most recent call first):\nframe #0"
    assert one_line(RuntimeError(text)) == "first second"
    gloo = "[enforce fail at /__w/third_party/gloo/device.cc:84] ifa != nullptr. No address for: eth77"
    assert one_line(gloo) == "ifa != nullptr. No address for: eth77"
    closed = "[../gloo/pair.cc:534] Connection closed by peer [::1]:24. This is typically caused by a remote worker. 🏖️"
    assert one_line(closed) == "Connection closed by peer [::1]"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 1000)) == 240
