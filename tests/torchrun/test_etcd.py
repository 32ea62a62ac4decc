"""`--rdzv-backend=etcd-v2`, with a real etcd if there is one, and else taskd's requirements of a handler.

Needs the program `etcd`, 3.5 or older, since torch uses its old protocol, and the Python package `python-etcd`.
"""

import importlib.util
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from taskd.adaptors.torchrun.entry import least_nodes, most_nodes, wanted_place
from tests.launch import free_port
from tests.torchrun.conftest import Play
from tests.torchrun.test_options_nodes import MANAGED
from tests.torchrun.twins import PROGRAMS, Launch

PACKAGE = importlib.util.find_spec("etcd")
LIMIT_S = 20.0


@pytest.fixture
def etcd(tmp_path: Path, leak_mark: str) -> Iterator[int]:
    """Start a server of its own, and yield its port."""
    del leak_mark
    program = shutil.which("etcd")
    if program is None or PACKAGE is None:
        pytest.skip("no etcd on this machine: apt-get install etcd-server, pip install python-etcd")
    port, url = free_port(), "http://127.0.0.1:"
    clients = [f"--{kind}-client-urls={url}{port}" for kind in ("listen", "advertise")]
    command = [program, "--enable-v2", f"--data-dir={tmp_path / 'data'}", f"--listen-peer-urls={url}0", *clients]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            await_server(f"{url}{port}/v2/keys", server, tmp_path / "log")
            yield port
        finally:
            server.kill()


def await_server(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when it answers."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S):
                return
        except OSError:
            time.sleep(0.05)  # it does not listen yet


def test_two_nodes(play: Play, etcd: int) -> None:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    own = ("--nnodes=2", "--rdzv-backend=etcd-v2", f"--rdzv-endpoint=127.0.0.1:{etcd}", "--rdzv-id=job{port}")
    nodes = ((*own, "--local-addr=127.0.0.1", "{observer}", "meet"),) * 2
    env = {**MANAGED, "PLUGINS": str(Path(PACKAGE.origin).parents[1])}
    pair = play(Launch(nodes, env, program=str(PROGRAMS / "plugged.py"), manager=True))
    pair.check_ranks()
    assert pair.stock.statuses == [0, 0], pair.stock.text
    assert sorted(pair.stock.ranks) == ["seen-0-0-of-2", "seen-1-0-of-2"]


def etcd_handler() -> Any:
    """Return a handler as torch makes it. It sends nothing to the server before the rendezvous."""
    backend = EtcdRendezvousBackend(SimpleNamespace(), "job")
    return DynamicRendezvousHandler.from_backend("job", HashStore(), backend, 2, 4, "127.0.0.1")


@pytest.mark.parametrize(
    ("handler", "most", "least", "place"),
    [
        (etcd_handler(), 4, 2, -1),
        (StaticTCPRendezvous("127.0.0.1", 1, 2, 3, "job", 1), 3, 0, 2),
        (SimpleNamespace(), 1, 0, -1),
    ],
    ids=["etcd-v2", "static", "another package's"],
)
def test_what_is_asked_of_a_handler(handler: Any, most: int, least: int, place: int) -> None:
    spec: Any = SimpleNamespace(rdzv_handler=handler)
    assert (most_nodes(spec), least_nodes(spec), wanted_place(spec)) == (most, least, place)
