"""Without a fault, every kind of parallel training does the same under taskd and under stock torchrun, bit for bit."""

import json
from pathlib import Path

import pytest

from tests.launch import Launcher

ROOT = Path(__file__).parents[2]
KINDS = Path(__file__).with_name("programs") / "kinds.py"
LAUNCHERS = {"stock": ["python", "-m", "torch.distributed.run"], "taskd": ["python", "-m", "taskd", "run"]}
NOT_ON_A_CPU = {"context_parallel", "split", "fsdp1_offloaded"}
"""Kinds that torch refuses there, with the same text under both."""


def results(launcher: Launcher, folder: Path, which: str, *kinds: str) -> dict[str, list[str]]:
    """Return each rank's results, by kind."""
    where = folder / which
    where.mkdir()
    command = [*LAUNCHERS[which], "--standalone", "--nproc-per-node=4", str(KINDS), *kinds]
    environment = {"TASKD_RUN_DIR": str(where), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    status, told = launcher.run(command, env=environment, cwd=where, timeout_s=280)
    assert status == 0, told
    lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"kind"')]
    return {line["kind"]: line["ranks"] for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kind_gives_what_it_gives_under_stock_torchrun(launcher: Launcher, run_dir: Path) -> None:
    stock, with_taskd = (results(launcher, run_dir, which) for which in LAUNCHERS)
    assert with_taskd == stock
    refused = {name for name, ranks in stock.items() if any("Error" in rank for rank in ranks)}
    assert len(stock) > 40
    assert refused <= NOT_ON_A_CPU
