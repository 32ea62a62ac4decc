"""taskd's own options on torchrun's command line."""

import json
import sys
from pathlib import Path

import pytest

from tests.launch import Launcher
from tests.thorough import everyday

SCRIPT = Path(__file__).with_name("programs") / "seen_options.py"


def seen(launcher: Launcher, run_dir: Path, *options: str, enabled: str = "on") -> object:
    """Return the script's view: the two variables, and its own arguments."""
    env = {"TASKD_PROCESS_ENABLE": enabled, "TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"}
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "1",
        *options,
        SCRIPT,
        "--node-check",
    ]
    process = launcher.start(words, env=env)
    status, output = process.wait(60), launcher.output(process)
    line = next((line for line in output.splitlines() if line.startswith("seen ")), None)
    return json.loads(line[5:]) if line is not None and status == 0 else output


@pytest.mark.parametrize("option", everyday(["--exclude-straggler", "--exclude_straggler"], "--exclude_straggler"))
def test_an_option_is_its_variable(launcher: Launcher, run_dir: Path, option: str) -> None:
    assert seen(launcher, run_dir, option) == [[None, "on"], ["--node-check"]]


def test_the_scripts_own_words_are_left_to_it(launcher: Launcher, run_dir: Path) -> None:
    assert seen(launcher, run_dir) == [[None, None], ["--node-check"]]


def test_without_taskd_torchrun_refuses_them(launcher: Launcher, run_dir: Path) -> None:
    assert "unrecognized arguments: --exclude-straggler" in str(
        seen(launcher, run_dir, "--exclude-straggler", enabled="off")
    )


def test_help_names_them(launcher: Launcher, run_dir: Path) -> None:
    text = str(seen(launcher, run_dir, "--help"))
    for option in ("--node-check", "--network-check", "--exclude-straggler"):
        assert option in text
