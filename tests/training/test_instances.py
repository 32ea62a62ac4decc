"""Objects of the watched kinds are known from their creation, by any means; nothing is searched or imported."""

import ast
import sys
from pathlib import Path

import pytest

import taskd
from tests.launch import Launcher

PROGRAM = Path(__file__).with_name("instances_program.py")
MAY_COLLECT = {
    "adaptors/groups/instances.py": {"get_objects"},  # where taskd is off
    "adaptors/training/limits/refusals.py": {"collect"},  # when a first process enters
}
WALKS = {"collect", "get_objects", "get_referents", "get_referrers"}


def test_every_way_of_making_is_seen(launcher: Launcher) -> None:
    status, output = launcher.run([sys.executable, str(PROGRAM)])
    assert status == 0, output


def test_no_further_place_walks_through_the_heap() -> None:
    package = Path(taskd.__file__).parent
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gc" and node.attr in WALKS:
                found.setdefault(str(path.relative_to(package)), set()).add(node.attr)
    assert found == MAY_COLLECT


@pytest.mark.slow
def test_a_plain_script_gets_no_module_that_it_does_not_import(launcher: Launcher, run_dir: Path) -> None:
    program = PROGRAM.with_name("modules_program.py")
    loaded = []
    for switch in ("off", "on"):
        out = run_dir / switch
        command = [
            "python",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=1",
            str(program),
            str(out),
        ]
        env = {"TASKD_PROCESS_ENABLE": switch, "TASKD_RUN_DIR": str(run_dir / "run"), "PYTHONPATH": str(Path.cwd())}
        status, output = launcher.run(command, env=env, timeout_s=120)
        assert status == 0, output
        loaded.append(set(out.read_text().split()))
    stock, ours = loaded
    assert "taskd.runtime.worker.worker" in ours, "the rank has taskd"
    further = {name.partition(".")[0] for name in ours - stock} - sys.stdlib_module_names
    assert further == {"taskd", "msgspec", "_cffi_backend", "sitecustomize"}
    assert not {name for name in ours if name.startswith("torch.distributed.pipelining")}
