"""`taskd check` as a user calls it."""

import json
import os
from pathlib import Path

import pytest

from tests.launch import Launcher

Told = tuple[int, str]


@pytest.fixture
def check(launcher: Launcher, run_dir: Path):
    def call(*words: str, **env: str | None) -> Told:
        return launcher.run(["python", "-m", "taskd", "check", *words], env={"TASKD_RUN_DIR": str(run_dir), **env})

    return call


def test_a_machine_that_is_well(check, run_dir: Path) -> None:
    status, output = check("--nproc", "2")
    assert status == 0, output
    lines = output.splitlines()
    assert " · 2 local ranks · " in lines[0]
    assert lines[-1] == "healthy"
    rows = {line.split("  ")[1].strip(): line.split()[-1] for line in lines if line.endswith(" ok")}
    assert list(rows) == ["compute", "memory", "loopback", "disk", "collective", "latency"]
    assert os.listdir(run_dir) == []


def test_one_rank_has_nobody_to_talk_to(check) -> None:
    status, output = check("--nproc", "1")
    assert status == 0, output
    assert "1 local rank ·" in output
    assert "collective" not in output


def test_json(check) -> None:
    status, output = check("--nproc", "3", "--json")
    assert status == 0, output
    said = json.loads(output)
    assert said["healthy"] is True
    assert len(said["ranks"]) == 3
    assert said["own"]["compute_tflops"] == min(rank["compute_tflops"] for rank in said["ranks"])
    assert said["own"]["disk_mbps"] > 0
    assert said["trial"]["ok"] is True
    assert said["trial"]["gbps"] > 0


def test_a_machine_that_is_not_well(check) -> None:
    status, output = check("--nproc", "2", GLOO_SOCKET_IFNAME="eth77", TASKD_RUN_DIR="/proc")
    assert status == 1
    assert "FAILED" in output
    assert "\n  local rank 0: loopback: GLOO_SOCKET_IFNAME: found no interface 'eth77'" in output
    assert "\n  disk: no file can be written in /proc (" in output
    assert "collective: all local ranks: forming the group failed: " in output
    assert output.endswith("\nnot healthy\n")


def test_a_device_that_is_not_there(check) -> None:
    status, output = check("--nproc", "1", "--device", "npu", "--json")
    assert status == 1
    assert json.loads(output)["own"]["cause"].startswith("device: no npu device can be used: ")


def test_the_run_directory_need_not_be_there_yet(check, run_dir: Path) -> None:
    status, output = check("--nproc", "1", TASKD_RUN_DIR=f"{run_dir}/later/on")
    assert status == 0, output
    assert os.listdir(run_dir) == []


WRONG = {
    ("--nproc", "0"): "argument --nproc: found '0', expected a whole number from 1 to 1024",
    ("--nproc", "two"): "argument --nproc: found 'two', expected a whole number from 1 to 1024",
    ("--nproc",): "argument --nproc: expected one argument",
    ("--seconds", "0"): "argument --seconds: found '0', expected a number of seconds from 1 to 300",
    ("--seconds", "nan"): "argument --seconds: found 'nan', expected a number of seconds from 1 to 300",
    ("--device", "tpu"): "argument --device: invalid choice: 'tpu'",
    ("here",): "unrecognized arguments: here",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_told_in_one_line(check, words: tuple[str, ...]) -> None:
    status, output = check(*words)
    assert status == 2
    assert output.startswith(f"taskd check: {WRONG[words]}")
    assert output.endswith("; see taskd check --help\n")
    assert output.count("\n") == 1


def test_a_wrong_setting(check) -> None:
    status, output = check(TASKD_RUN_DIR="relative")
    assert status == 1
    assert output.startswith("taskd check: TASKD_RUN_DIR: found 'relative', expected an absolute path")
    assert output.count("\n") == 1
