"""Damaged libraries: cut short by a full disk or a broken copy, or with false headers."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import taskd
from taskd.runtime.box.elf import flaw
from tests.e2e.job import no_outer_job
from tests.launch import Launcher
from tests.shim.armed import CORE, GATE, PROGRAMS, plain

Damage = Callable[[bytes], bytes]
REMEDY = "reinstall taskd"
NODE = ("python", PROGRAMS / "damaged_node.py")
RANK = ("python", PROGRAMS / "trains.py")
LIBS = Path("python", "cython_api", "libs")
_SEGMENTS_AT, _SECTIONS_AT, _MACHINE_AT = 32, 40, 18
_FIRST_SEGMENT = 64


def _put(at: int, value: int, form: str = "=Q") -> Damage:
    def damage(whole: bytes) -> bytes:
        changed = bytearray(whole)
        struct.pack_into(form, changed, at, value)
        return bytes(changed)

    return damage


DAMAGES: dict[str, Damage] = {
    "0 bytes": lambda whole: b"",
    "1 byte": lambda whole: whole[:1],
    "5 KB": lambda whole: whole[:5000],
    "half": lambda whole: whole[: len(whole) // 2],
    "30 KB": lambda whole: whole[: min(30_000, len(whole) * 4 // 5)],
    "all but one byte": lambda whole: whole[:-1],
    "segments behind the end": lambda whole: _put(_SEGMENTS_AT, len(whole))(whole),
    "segments nowhere": _put(_SEGMENTS_AT, 2**64 - 1),
    "sections behind the end": _put(_SECTIONS_AT, 2**40),
    "a segment as long as can be": _put(_FIRST_SEGMENT + 32, 2**64 - 1),
    "of another machine": _put(_MACHINE_AT, 0xF3, "=H"),
    "zeros": lambda whole: bytes(len(whole)),
}


@pytest.fixture
def install(tmp_path: Path) -> Callable[[Path, Damage], dict[str, str | None]]:
    """Return a function that makes a taskd with one damaged library, and returns the environment to use it."""

    def put(library: Path, damage: Damage) -> dict[str, str | None]:
        folder = tmp_path / "taskd"
        if not folder.exists():
            shutil.copytree(Path(taskd.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / LIBS / library.name).write_bytes(damage(library.read_bytes()))
        return plain() | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    return put


@pytest.mark.parametrize("library", [CORE, GATE], ids=["core", "gate"])
def test_agent_and_worker_go_on_without_it(library, install, launcher: Launcher, tmp_path: Path) -> None:
    env = install(library, DAMAGES["0 bytes"])
    damaged = [tmp_path / str(number) for number, _ in enumerate(DAMAGES)]
    for path, damage in zip(damaged, DAMAGES.values(), strict=True):
        path.write_bytes(damage(library.read_bytes()))
    target = tmp_path / "taskd" / LIBS / library.name
    status, output = launcher.run([*NODE, tmp_path, target, *damaged], env=env, cwd=tmp_path)
    assert status == 0, output
    for kind, answer in zip(DAMAGES, output.splitlines(), strict=True):
        boxed, preload, child, ld_says, said, reason = json.loads(answer)
        assert (child, ld_says, preload) == (0, "", {}), kind
        assert [str(target) in line and REMEDY in line for line in said] == [True], (kind, said)
        assert boxed == (library == GATE), kind
        assert (REMEDY in reason) == (library == CORE), kind


@pytest.mark.parametrize("library", [CORE, GATE], ids=["core", "gate"])
def test_doctor_names_it_and_the_remedy(library, install, launcher: Launcher, tmp_path: Path) -> None:
    env = install(library, DAMAGES["30 KB"])
    status, output = launcher.run(["python", "-m", "taskd", "doctor", "--json"], env=env, cwd=tmp_path)
    assert status == 1, output
    subject = "core" if library == CORE else "libtaskd.so"
    (flawed,) = [one for one in json.loads(output)["findings"] if one["subject"] == subject]
    told = f"{flawed['found']} {flawed['remedy']}"
    assert (str(tmp_path) in told, REMEDY in told) == (True, True)


@pytest.fixture
def rank(box, run_dir: Path) -> dict[str, str]:
    ours = {"RANK": "3", "TASKD_BLACKBOX": str(box.path), "TASKD_AGENT_SOCKET": str(run_dir / "s")}
    return {**ours, "TASKD_AGENT_PID": str(os.getpid()), "TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir)}


def test_a_worker_whose_core_is_cut_after_its_agent_has_loaded_it(
    install, rank, launcher: Launcher, tmp_path: Path
) -> None:
    env = install(CORE, DAMAGES["5 KB"])
    status, output = launcher.run(RANK, env={**env, **rank}, cwd=tmp_path)
    assert (status, output.splitlines()[-1]) == (0, "trains"), output
    (said,) = [line for line in output.splitlines() if "rank 3 runs without its black box" in line]
    assert REMEDY in said


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_program_that_preloads_the_gate_goes_on(damage, install, rank, launcher: Launcher, tmp_path: Path) -> None:
    """The loader would crash with a core that was cut. The gate checks it first, and goes on without it."""
    env = install(CORE, DAMAGES[damage])
    gate = tmp_path / "taskd" / LIBS / GATE.name
    command = ["python", "-S", "-c", "print('goes on')"]
    assert launcher.run(command, env={**env, **rank, "LD_PRELOAD": str(gate)}, cwd=tmp_path) == (0, "goes on\n")


def test_a_worker_whose_box_is_cut_before_it_has_it(box, rank, launcher: Launcher) -> None:
    os.truncate(box.path, 4096)
    status, output = launcher.run(RANK, env={**plain(), **rank})
    assert (status, output.splitlines()[-1]) == (0, "trains"), output
    (said,) = [line for line in output.splitlines() if "rank 3 runs without its black box" in line]
    assert "it has not the size of a black box" in said


@pytest.mark.parametrize("library", [CORE, GATE], ids=["core", "gate"])
def test_a_job_trains_all_the_same(library, install, launcher: Launcher, tmp_path: Path, run_dir: Path) -> None:
    env = install(library, DAMAGES["5 KB"])
    script = tmp_path / "script.py"
    script.write_text("import os, torch\nprint('rank', os.environ['RANK'], 'trains')\n")
    command = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    on = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"}
    status, output = launcher.run(command, env={**no_outer_job(), **env, **on}, cwd=tmp_path, timeout_s=120)
    assert status == 0, output
    assert all(f"rank {rank} trains" in output for rank in range(2))
    assert sum(REMEDY in line for line in output.splitlines()) == 1, output


def test_what_is_whole_has_no_flaw() -> None:
    assert (flaw(CORE), flaw(GATE)) == ("", "")


def test_nobody_waits_for_a_pipe_in_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a file" in flaw(tmp_path / "pipe")
