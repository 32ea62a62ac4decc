"""The command line in processes of its own."""

import json
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT: dict[str, str | None] = {"PYTHONPATH": str(ROOT), "TASKD_PROCESS_ENABLE": None, "MASTER_ADDR": None}


def test_wrong_usage_says_what_is_right(launcher: Launcher) -> None:
    for words, text in (([], "found no command"), (["fly"], "found 'fly'"), (["run"], "found no script")):
        status, output = launcher.run(["python", "-m", "taskd", *words], env=ENVIRONMENT)
        assert status == 2
        assert text in output


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 1)])
def test_run_is_torchrun_with_taskd_on(launcher: Launcher, tmp_path: Path, code: int, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('enabled', os.environ['TASKD_PROCESS_ENABLE'], 'TASKD_AGENT_SOCKET' in os.environ, sys.argv[1:])\n"
        f"sys.exit({code})\n"
    )
    words = ["run", "--nproc_per_node=1", "--max_restarts=0", str(script), "--lr", "1"]
    found, output = launcher.run(["python", "-m", "taskd", *words], env={**ENVIRONMENT, "TASKD_MANAGER": "embedded"})
    assert found == status, output
    assert "enabled on True ['--lr', '1']" in output


def test_run_shows_torchruns_help(launcher: Launcher) -> None:
    status, output = launcher.run(["python", "-m", "taskd", "run", "--help"], env=ENVIRONMENT)
    assert status == 0
    assert "usage: taskd run" in output
    assert "--nproc" in output


def test_doctor_reports_and_flags(launcher: Launcher) -> None:
    env = {
        **ENVIRONMENT,
        "TASKD_STANBY": "2",
        "TASKD_SECRET": "sixteen letters or more",
        "TASKD_PROCESS_ENABLE": "on",
    }
    status, output = launcher.run(["python", "-m", "taskd", "doctor", "--json"], env=env)
    report = json.loads(output)
    findings = {finding["subject"]: finding for finding in report["findings"]}
    assert (status, report["healthy"]) == (1, False)
    assert findings["TASKD_STANBY"]["remedy"].endswith("(did you mean TASKD_STANDBY?)")
    assert findings["fits torch"]["remedy"] == ""
    assert findings["switched"]["found"] == "on"
    assert "sixteen" not in output
    assert {"injection", "libtaskd.so", "core", "manager"} <= findings.keys()


def test_doctor_shows_a_table(launcher: Launcher) -> None:
    status, output = launcher.run(["python", "-m", "taskd", "doctor"], env={**ENVIRONMENT, "TASKD_STANDBY": "many"})
    assert status == 1
    assert "!!  manager" in output
    assert output.rstrip().endswith("not healthy")
