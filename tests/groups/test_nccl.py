"""Groups of NCCL, as far as a machine without an accelerator shows them: the setting of torch's watchdog."""

from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore, PrefixStore
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups import nccl
from tests.e2e.job import no_outer_job
from tests.launch import Launcher

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
SCRIPT = """
import os
{imports}
import torch.distributed as dist

dist.init_process_group("gloo")
print("handling", os.environ["{name}"], flush=True)
dist.destroy_process_group()
"""
LAZILY = """
import importlib.util, sys, torch.distributed  # whose import looks into all modules
spec = importlib.util.find_spec("late")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["late"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["late"])
"""


IMPORTS = [
    pytest.param("import taskd", None, "0", marks=pytest.mark.thorough),
    pytest.param("import taskd as td", None, "0", marks=pytest.mark.thorough),
    pytest.param("from taskd import resilient as keeps", None, "0", marks=pytest.mark.thorough),
    pytest.param(
        "import importlib.util; importlib.util.find_spec('torch'); import taskd", None, "0", marks=pytest.mark.thorough
    ),
    ("import importlib; importlib.import_module('helper')", None, "0"),
    ("", None, "1"),
    pytest.param("import taskd", "2", "2", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("imports", "given", "expected"), IMPORTS)
def test_the_watchdog_spares_who_uses_taskd(
    launcher: Launcher, run_dir: Path, imports: str, given: str | None, expected: str
) -> None:
    assert f"handling {expected}\n" in told_by(launcher, run_dir, imports, given)


def test_a_module_that_is_loaded_lazily_stays_unloaded(launcher: Launcher, run_dir: Path) -> None:
    told = told_by(launcher, run_dir, LAZILY, None)
    assert "handling 1\n" in told
    assert "loaded" not in told


def told_by(launcher: Launcher, run_dir: Path, imports: str, given: str | None) -> str:
    """Return the output of a script with these imports."""
    (run_dir / "helper.py").write_text("import taskd\n")
    (run_dir / "late.py").write_text("print('loaded')\nimport taskd\n")
    script = run_dir / "script.py"
    script.write_text(SCRIPT.format(imports=imports, name=HANDLING))
    environment = {**no_outer_job(), HANDLING: given, "TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir)}
    command = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)]
    status, told = launcher.run(command, env={**environment, "GLOO_SOCKET_IFNAME": "lo"})
    assert status == 0, told
    assert "could not prepare" not in told
    return told


def test_an_alarm_of_another_world_is_forgotten(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "is_nccl_available", lambda: True)
    root = FileStore(str(run_dir / "store"), 1)
    root.set("exception_dump", "1")
    root.set("other", "1")
    nccl.forget_alarm(PrefixStore("inner", PrefixStore("outer", root)))
    assert not root.check(["exception_dump"])
    assert root.check(["other"])
    nccl.forget_alarm(root)
