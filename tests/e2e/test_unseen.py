"""taskd's hooks in torch are invisible to a script: lines of warnings, frames of errors and functions stay the same.

The same script runs under stock torchrun, without taskd, and under taskd, where a rank is killed.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point

SCRIPT = "unseen.py"
WITH_FRAMES = " its _compiled_call_impl"
"""Attribute that still has a frame: a forward pass, see below."""
FORWARD = ("hooks.py:call", "module.py:inner")
"""torch.compile traces the function there, so it stays a function. torch has one for modules with a hook, too."""


@pytest.mark.slow
def test_a_script_sees_its_own_lines(make_job: MakeJob) -> None:
    """Rank 0 survives a fault, rank 1 is a newcomer. Both see the same of torch as without taskd."""
    plain, job = make_job(2), make_job(2)
    plain.start(SCRIPT, {"plain": True}, env={"TASKD_PROCESS_ENABLE": None})
    job.start(SCRIPT, {"points": [point("one", 1, 3, "backward")]})
    assert plain.end() == 0, plain.output
    job.warm()
    job.kill("one")
    assert not job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    different: list[str] = []
    for rank in range(2):
        for when in ("set-up", "end"):
            expected, found = _read(plain.folder, when, rank, "plain"), _read(job.folder, when, rank, "taskd")
            ours = [one for one in found.pop("ours", []) if not one.endswith(WITH_FRAMES)]
            different += [f"rank {rank}, {when}: a frame of taskd's in {one}" for one in ours]
            different += [f"rank {rank}, {when}: {one}" for one in _differences("", expected, found)]
    assert not different, "\n".join(different)


def _differences(where: str, expected: Any, found: Any) -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        names = sorted(expected.keys() | found.keys())
        return [one for name in names for one in _differences(f"{where}/{name}", expected.get(name), found.get(name))]
    if isinstance(found, list):
        found = [one for one in found if one not in FORWARD]
        missing = [one for one in expected if one not in found]
        more = [one for one in found if one not in expected]
        if missing or more:
            return [f"{where}: missing {missing}, more {more}"]
    return [] if expected == found else [f"{where}: expected {expected}, found {found}"]


def _read(folder: Path, when: str, rank: int, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"seen-{when}-{rank}-{kind}").read_text())
    return found
