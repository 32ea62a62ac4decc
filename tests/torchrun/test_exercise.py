"""A step that a template runs ahead: it leaves neither threads nor a device that forks cannot use."""

import importlib
import logging
import subprocess
import sys

import pytest
import torch

from taskd.adaptors.torchrun import exercise, standby
from taskd.config.process import environment
from tests.thorough import everyday

COUNTS_THREADS = """
import os
from taskd.adaptors.torchrun.exercise import run_step
before = len(os.listdir("/proc/self/task"))
run_step()
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize("threads", everyday(["1", "4"], "4"))
def test_no_thread_is_left(threads: str) -> None:
    env = {**environment(), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    assert subprocess.check_output([sys.executable, "-c", COUNTS_THREADS], env=env, text=True) == "0\n"


def test_no_device_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the template has asked for a device")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name in ("is_available", "device_count", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    if hasattr(torch, "accelerator"):  # since torch 2.6
        monkeypatch.setattr(torch.accelerator, "current_accelerator", refuse)
    exercise.run_step()


def test_nothing_is_left_for_init_process_group_to_empty() -> None:
    rules = importlib.import_module("torch._dynamo.trace_rules")
    rules.get_torch_obj_rule_map()
    exercise.run_step()
    assert rules.get_torch_obj_rule_map.cache_info().currsize == 0


def test_a_torch_that_cannot_do_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(torch.optim, "AdamW")
    with caplog.at_level(logging.INFO):
        standby._exercise()
    assert "cannot run a step ahead" in caplog.text
