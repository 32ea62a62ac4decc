"""All of taskd works without numpy, which `pip install` of its wheel and of torch does not install.

The jobs run in an environment of links to this one's packages, without numpy (`numpyless.py`).
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd.adaptors.training.tree import bytes_of
from tests.bare.numpyless import make_environment
from tests.e2e.conftest import make_job
from tests.e2e.job import Job, no_outer_job
from tests.e2e.plan import point
from tests.launch import Launcher

__all__ = ["make_job"]
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("programs") / "trains.py"
RANKS, STEPS = 2, 8
NEEDS_NUMPY = re.compile(r"\.numpy\(|from_numpy|\b(dist|c10d)\.\w*object\w*\(")
"""Calls of torch's that need numpy, including its collectives of objects."""
ALLOWED = re.compile(r'_get_object_coll_device\(|"from_numpy"')
"""A function of torch's that needs no numpy, and a name in a table."""
WITHOUT = "Failed to initialize NumPy"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment without numpy."""
    return str(make_environment(tmp_path_factory.mktemp("numpyless")))


@pytest.fixture
def start(python: str, make_job: Callable[[int], Job]) -> Callable[..., Job]:
    """Return a function that starts the program with a plan."""

    def begin(plan: dict[str, Any], env: dict[str, str | None] | None = None) -> Job:
        job = make_job(RANKS)
        job.python = python
        return job.start(str(PROGRAM), {"steps": STEPS, **plan}, env=env)

    return begin


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("ddp", {"seed": 1, "verify": "replicas", "every": 2}),
        pytest.param("fsdp", {"backup_every": 1}, marks=pytest.mark.thorough),
    ],
)
def test_a_killed_rank_is_recovered_in_place(start: Callable[..., Job], kind: str, state: dict[str, Any]) -> None:
    """Its state comes from its replica, or from a copy. No process warns more often than under plain torchrun."""
    plan = {"kind": kind, "state": state}
    job = start({**plan, "points": [point("victim", 1, 5, "forward"), point("last", 0, 8, "begin")]})
    job.warm()
    before = job.pids
    (victim,) = job.kill("victim")
    record = job.recovered(1)
    assert set(record["kept"].values()) == set(before.values()) - {victim}
    job.held("last")
    job.release("last")
    assert job.end() == 0, job.output
    undisturbed = start(plan, {"TASKD_PROCESS_ENABLE": None})
    assert undisturbed.end() == 0, undisturbed.output
    assert job.results() == undisturbed.results()
    assert 0 < job.output.count(WITHOUT) <= undisturbed.output.count(WITHOUT)


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_a_dump_is_written_and_loaded(start: Callable[..., Job], run_dir: Path) -> None:
    shelf = run_dir / "shelf"
    env: dict[str, str | None] = {"TASKD_RECOVER_STRATEGY": "dump", "TASKD_CHECKPOINT_DIR": str(shelf)}
    job = start({"points": [point("victim", 1, 5, "forward")]}, env)
    job.kill("victim")
    assert job.end() == 1
    assert (shelf / "step-4").is_dir(), job.output
    for taskd in ("on", None):
        again = start({"load": str(shelf)}, {"TASKD_PROCESS_ENABLE": taskd})
        assert again.end() == 0, again.output
        assert [(again.folder / f"loaded-{rank}").read_text() for rank in range(RANKS)] == ["4", "4"]


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_sharded_ranks_save_and_load(start: Callable[..., Job], run_dir: Path) -> None:
    plan = {"kind": "fsdp", "load": str(run_dir / "shelf"), "steps": 6}
    first = start({**plan, "save": 4}, {"TASKD_PROCESS_ENABLE": None})
    assert first.end() == 0, first.output
    assert (run_dir / "shelf" / "step-4").is_dir()
    second = start(plan, {"TASKD_PROCESS_ENABLE": None})
    assert second.end() == 0, second.output
    assert (second.folder / "loaded-1").read_text() == "4"
    assert second.results() == first.results()


def test_doctor_finds_a_healthy_installation(python: str, launcher: Launcher) -> None:
    status, told = launcher.run([python, "-m", "taskd", "doctor"], env={**no_outer_job(), "PYTHONPATH": str(ROOT)})
    assert status == 0, told


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_rehearsal_gives_its_verdict(python: str, launcher: Launcher) -> None:
    script = ROOT / "examples" / "scripts" / "text_stateful.py"
    env = {**no_outer_job(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "taskd", "run", "--rehearse", "--json", script.name]
    status, told = launcher.run(command, env=env, cwd=script.parent, timeout_s=380)
    assert status == 0, told
    assert json.loads(told.splitlines()[-1])["in_place"] > 0


def test_nothing_of_ours_calls_what_needs_numpy() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "taskd").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NEEDS_NUMPY.search(ALLOWED.sub("", line))
    ]
    assert not found


def test_the_bytes_of_a_tensor_are_those_that_numpy_gives() -> None:
    import torch

    odd = torch.arange(24, dtype=torch.int16).reshape(4, 6)
    for tensor in (odd, odd.t(), odd[1:3, ::2], odd[:0], torch.randn(3, dtype=torch.complex64), torch.tensor(True)):
        assert bytes_of(tensor) == tensor.contiguous().numpy().tobytes()
    turned = torch.randn(3, dtype=torch.complex64).conj()
    assert bytes_of(turned) == turned.resolve_conj().numpy().tobytes()
    assert bytes_of(torch.ones(2, dtype=torch.bfloat16)) == b"\x80\x3f" * 2
    for unreadable in (torch.empty(3, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(RuntimeError):
            bytes_of(unreadable)
