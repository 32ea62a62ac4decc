"""torch.compile: survivors keep their graphs, and the new process compiles alone and gets the time for it."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point
from tests.thorough import everyday

STEPS = 12
WAYS = ["ddp aot_eager", "fsdp2 aot_eager", "tensors aot_eager", "ddp inductor", "fsdp2 inductor"]


@pytest.mark.slow
@pytest.mark.parametrize("way", everyday(WAYS, "ddp aot_eager"))
def test_survivors_keep_their_graphs(make_job: MakeJob, tmp_path: Path, way: str) -> None:
    """A rank is killed in a backward pass; the weights are those of an undisturbed run under stock torchrun."""
    model, compiler = way.split()
    if compiler == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles for CPUs with g++, which is not installed")
    plan = {"steps": STEPS, "model": model, "compiler": compiler}
    kernels: dict[str, str | None] = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels")}
    undisturbed = make_job(2).start("compiled.py", plan, env={"TASKD_PROCESS_ENABLE": None, **kernels})
    assert undisturbed.end() == 0, undisturbed.output
    job = make_job(2).start("compiled.py", {**plan, "points": [point("one", 1, 7, "backward")]}, env=kernels)
    job.kill("one")
    record = job.recovered(1)
    assert not record["restart"]
    assert record["inexact"] == {}
    assert job.end() == 0, job.output
    assert [one["weights"] for one in job.results()] == [one["weights"] for one in undisturbed.results()]
    survivor, newcomer = job.results()
    at_first, at_self_check, at_return, at_end = survivor["graphs"]
    assert at_first == 0 < at_self_check <= at_return == at_end
    assert newcomer["graphs"][0] == 0 < newcomer["graphs"][-1]
    if compiler == "inductor":
        assert newcomer["hits"] > 0  # kernels that its predecessor has compiled


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles for CPUs with g++")
def test_kernels_that_a_new_process_makes_itself_are_told(make_job: MakeJob, tmp_path: Path) -> None:
    """The kernels of its predecessor are gone. The record reports that the last bits may differ, and of which rank."""
    kernels: dict[str, str | None] = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels")}
    plan = {"steps": STEPS, "model": "ddp", "compiler": "inductor", "kernels": str(tmp_path / "kernels")}
    job = make_job(2).start("compiled.py", {**plan, "points": [point("one", 1, 7, "backward")]}, env=kernels)
    job.kill("one")
    record = job.recovered(1)
    assert [*record["inexact"]] == ["1"]
    assert "graphs were compiled anew, not found in inductor's cache" in record["inexact"]["1"]
    assert job.end() == 0, job.output


@pytest.mark.slow
@pytest.mark.parametrize("compiler", everyday(["slow", "slow child"], "slow child"))
def test_a_long_compilation_is_no_hang(make_job: MakeJob, compiler: str) -> None:
    """The new process compiles for many times a usual step, after its first one. The job waits for it."""
    plan = {"steps": STEPS, "model": "ddp", "compiler": compiler, "rounds": 20_000_000}
    job = make_job(2).start("compiled.py", {**plan, "points": [point("one", 1, 7, "backward")]})
    job.kill("one")
    assert not job.recovered(1)["restart"]
    assert job.end() == 0, job.output
    assert len(job.named("recovered")) == 1
    first, second = job.results()
    assert first["weights"] == second["weights"]
