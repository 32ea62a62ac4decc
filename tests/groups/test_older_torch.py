"""taskd's behaviour in older torch, simulated with the installed one. `scripts/compat.sh` tries older torch itself."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from taskd.adaptors.seams.worker_ways import KeptTimeouts, SetTimeouts
from tests.launch import Launcher

ROOT = Path(__file__).resolve().parents[2]
OWN = timedelta(minutes=30)


def test_threads_of_gloo_get_the_names_of_newer_torch(launcher: Launcher) -> None:
    program = Path(__file__).with_name("nameless.py")
    process = launcher.start(["python", str(program)], env={"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"})
    assert process.wait(60) == 0, launcher.output(process)


def test_forming_is_limited_though_groups_keep_their_timeout() -> None:
    timeouts, freed = KeptTimeouts(), threading.Event()
    assert timeouts.making(OWN, 0.2) == OWN
    with pytest.raises(RuntimeError, match=r"more than 0\.2 s"), timeouts.limited(0.2, freed.set):
        assert freed.wait(30), "nobody interrupted"


def test_what_fails_when_it_is_interrupted_fails_as_it_does() -> None:
    freed = threading.Event()

    def form() -> None:
        with KeptTimeouts().limited(0.2, freed.set):
            assert freed.wait(30), "nobody interrupted"
            raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        form()


def test_forming_in_time_is_not_interrupted() -> None:
    interrupted = threading.Event()
    with KeptTimeouts().limited(0.2, interrupted.set):
        pass
    assert not interrupted.wait(1)


def test_newer_torch_limits_by_the_timeout_itself() -> None:
    assert SetTimeouts().making(OWN, 3) == timedelta(seconds=3)
