"""Ranks that a wrapper starts (`--no-python`): recovered in place like any other, with a true record."""

import json
import os
import sys
from collections.abc import Callable

import pytest

from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import SCRIPTS, Job
from tests.e2e.plan import point
from tests.thorough import everyday

Same = Callable[[Job], None]
WRAPPERS: dict[str, list[str]] = {
    "child": [str(SCRIPTS / "child.sh")],
    "exec": [str(SCRIPTS / "exec.sh")],
    "env": ["env", "VARIABLE=1", sys.executable],
    "torch first": [str(SCRIPTS / "child.sh")],
    "tool": [str(SCRIPTS / "tool.py")],
    "asking": ["env", sys.executable, str(SCRIPTS / "asking.py")],
}
EXECUTES = "exec"
if os.geteuid() == 0:  # a program without capabilities cannot read /proc/AGENT/fd
    EXECUTES = "drops capabilities"
    WRAPPERS[EXECUTES] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable]


@pytest.mark.parametrize("name", everyday(WRAPPERS, "child", EXECUTES))
def test_a_killed_rank_is_recovered_in_place(make_job: MakeJob, same: Same, name: str) -> None:
    job = make_job(2)
    plan = json.dumps({"folder": str(job.folder), "steps": STEPS, "points": [point("one", 1, 4, "forward")]})
    command = ["--standalone", "--no-python", *WRAPPERS[name], str(SCRIPTS / "train.py"), plan]
    job.launch(command, env={"PYTHON": sys.executable, "LOOK": "import torch" if name == "torch first" else None})
    os.kill(job.held("one"), 9)
    record = job.recovered(1)
    assert (record["restart"], record["kept"].keys(), record["replaced"].keys()) == (False, {"0"}, {"1"})
    assert job.end() == 0, job.output
    assert len(job.named("recovered")) == 1
    assert ("without its black box" in job.output) == (name == "torch first"), "the process before had claimed it"
    assert "is dying" not in job.output
    same(job)


def test_what_a_wrapped_rank_starts_knows_nothing_of_the_wrapper(make_job: MakeJob) -> None:
    """Its own torchrun, or a program of another interpreter, behaves as in a shell."""
    job = make_job(1)
    code = "import os, torch; print('left', os.environ.get('TASKD_WRAPPED'), 'taskd/python/start' in str(os.environ))"
    job.launch(["--standalone", "--no-python", "env", sys.executable, "-c", code])
    assert job.end() == 0, job.output
    assert job.output.count("left None False") == 1


def test_another_interpreter_takes_no_part(make_job: MakeJob) -> None:
    """It may not be able to import taskd. It prints nothing of taskd and runs as always."""
    job = make_job(1)
    code = "import sys; print('prefix', sys.prefix, [m for m in sys.modules if m.startswith('taskd')])"
    job.launch(["--standalone", "--no-python", "/usr/bin/env", "-S", "/usr/bin/python3", "-c", code])
    assert job.end() == 0, job.output
    assert job.output.count("prefix /usr []") == 1
    assert "Traceback" not in job.output
