"""Stacks from py-spy, of a process in which no Python can run."""

import os
import time
from pathlib import Path

import pytest

from taskd.runtime.agent.native_stacks import py_spy, take_native
from tests.runtime.watched import Start


def test_native_stacks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    if py_spy() is None:
        pytest.skip("needs py-spy, of the extra taskd[stacks]")
    rank = start("held.sleep(60)")
    rank.until(lambda known: known.clocks is not None and known.clocks.gil_s)
    text = take_native(rank.pid, timeout_s=20)
    assert "sleep" in text
    assert "<module>" in text
    assert take_native(4_194_303) == ""
    before_s = time.monotonic()
    assert take_native(rank.pid, timeout_s=0.001) == ""
    assert time.monotonic() - before_s < 0.5
    monkeypatch.setattr("taskd.runtime.agent.native_stacks.py_spy", lambda: None)
    assert take_native(rank.pid) == ""


def test_no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert py_spy() is None
    assert take_native(os.getpid()) == ""
