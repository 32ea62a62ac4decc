"""Probes of a silent node for a listening process: real sockets, and a name server that never answers."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.manager.kernels import MOST_NAMES, Kernels
from tests.runtime.local import PROGRAMS, ROOT
from tests.runtime.watched import until

LIMIT_S = 60.0
PROMPT_S = 2.0
"""Limit on a busy machine. A silent name server costs 5 s and more for each name."""
NAMESPACES = ("unshare", "--user", "--map-root-user", "--net", "--mount")


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    made = Kernels()
    yield made
    made.close()


def answer(kernels: Kernels) -> tuple[str, bool]:
    """Return the only answer."""
    found: list[tuple[str, bool]] = []

    def hear() -> bool:
        found.extend(kernels.answers())
        return bool(found)

    until(hear, "an answer")
    assert len(found) == 1
    return found[0]


def test_a_name_server_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    """A hundred agents have reported such names. One more is silent, and its address is known."""
    ready = subprocess.run([*NAMESPACES, "ip", "link"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ready.returncode:
        pytest.skip(f"no namespaces: {ready.stderr.strip()}")
    names = tmp_path / "resolv.conf"
    names.write_text("nameserver 127.0.0.1\n")
    command = [*NAMESPACES, sys.executable, str(PROGRAMS / "slow_names.py"), str(names)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if not said["asked"]:
        pytest.skip("names are resolved without the name server here")
    assert said["answers"] == [["near", True]]
    assert said["took_s"] < PROMPT_S
    assert said["threads"] <= MOST_NAMES


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("listening", [True, False])
def test_who_listens(kernels: Kernels, host: str, listening: bool) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    if not listening:
        server.close()
    with server:
        kernels.ask("agent", host, port)
        assert answer(kernels) == ("agent", listening)


@pytest.mark.parametrize("host", ["a" * 300, "a..b"])
def test_a_name_that_can_be_none_is_nobodys(kernels: Kernels, host: str) -> None:
    kernels.ask("agent", host, 9601)
    assert answer(kernels) == ("agent", False)
