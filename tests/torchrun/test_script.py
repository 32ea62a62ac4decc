"""A script as a rank, and one in a standby, against the same script under plain Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.command import START
from taskd.config.process import environment, starting_with
from tests.torchrun.nursery import Nursery

PROGRAMS = Path(__file__).with_name("programs")
ROOT = PROGRAMS.parents[2]
ENVIRONMENT = {**environment(), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("PYTHONSAFEPATH", None)

ENDS = ("", "raise", "chain", "exit", "exit text", "interrupt", "hook", "os exit", "thread", "spawn")
FORMS = (
    ["./probe.py", "raise"],
    ["../programs/probe.py", "raise"],
    [str(PROGRAMS / "probe.py"), "raise"],
    ["-m", "probe", "raise"],
    ["-m", "folder"],
    ["folder"],
    ["absent.py"],
    ["-m", "absent"],
    ["broken.py"],
)

Outcome = tuple[int, str, str]


def run(*arguments: str, cwd: Path, env: dict[str, str] = ENVIRONMENT) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-u", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=150
    )
    return done.returncode, done.stdout, done.stderr


def begun(*arguments: str, cwd: Path, env: dict[str, str] = ENVIRONMENT) -> Outcome:
    """Run the script as a rank begins."""
    return run(*arguments, cwd=cwd, env={**env, **starting_with(START, env)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of the programs, and of one that does not parse."""
    place = tmp_path / "programs"
    shutil.copytree(PROGRAMS, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "broken.py").write_text("x = 1\ndef f(:\n")
    return place


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_ends_as_plain_python_does(folder: Path, how: str) -> None:
    plain = run("probe.py", how, cwd=folder)
    assert begun("probe.py", how, cwd=folder) == plain


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_a_rank_takes_every_form_of_a_script(folder: Path, form: list[str]) -> None:
    plain = run(*[word.replace(str(PROGRAMS), str(folder)) for word in form], cwd=folder)
    booted = begun(*[word.replace(str(PROGRAMS), str(folder)) for word in form], cwd=folder)
    assert booted == plain
    assert plain[0] != 0


def test_an_error_in_the_machines_own_start_is_shown_beside_a_wrapper_of_another_interpreter(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import absent_from_this_machine\n")
    env = {**ENVIRONMENT, "PYTHONPATH": str(folder), "TASKD_WRAPPED": "cpython-310:/opt/other"}
    plain = run("probe.py", cwd=folder, env=env)
    assert "absent_from_this_machine" in plain[2]
    assert begun("probe.py", cwd=folder, env=env)[2].splitlines()[-1:] == plain[2].splitlines()[-1:]


def test_a_rank_respects_safe_path(folder: Path) -> None:
    env = {**ENVIRONMENT, "PYTHONSAFEPATH": "1"}
    assert begun("probe.py", cwd=folder, env=env) == run("probe.py", cwd=folder, env=env)


@pytest.mark.parametrize("path", [f":{ROOT}", f"{ROOT}:", f"{ROOT}:/absent"])
def test_a_rank_keeps_every_entry_of_the_path(folder: Path, path: str) -> None:
    """An empty entry is the working directory."""
    (folder / "entries.py").write_text("import os, sys\nprint(os.environ['PYTHONPATH'], sys.path)\n")
    env = {**ENVIRONMENT, "PYTHONPATH": path}
    assert begun("entries.py", cwd=folder, env=env) == run("entries.py", cwd=folder, env=env)


def test_a_rank_does_not_import_torch(folder: Path) -> None:
    (folder / "light.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    assert begun("light.py", cwd=folder) == (0, "False\n", "")


def test_a_standby_ends_as_plain_python_does(folder: Path, run_dir: Path) -> None:
    ends = ("", "raise", "exit", "interrupt", "hook", "os exit", "spawn")
    plains = [run("probe.py", how, cwd=folder) for how in ends]
    with Nursery(run_dir, ENVIRONMENT, "probe.py") as nursery:
        assert nursery.start_template(folder).threads == 1
        for how, plain, standby in zip(ends, plains, nursery.fork(len(ends)), strict=True):
            status = nursery.become(standby, ("probe.py", how), cwd=folder, env=ENVIRONMENT)
            assert (status, *nursery.output(standby)) == plain


def test_a_standby_sees_its_own_frames_and_source(folder: Path, run_dir: Path) -> None:
    plain = run("odd/frames.py", "word", cwd=folder)
    with Nursery(run_dir, ENVIRONMENT, "odd/frames.py") as nursery:
        nursery.start_template(folder)
        (standby,) = nursery.fork(1)
        status = nursery.become(standby, ("odd/frames.py", "word"), cwd=folder, env=ENVIRONMENT)
        assert (status, *nursery.output(standby)) == plain


def test_standbys_differ_where_fresh_processes_do(folder: Path, run_dir: Path) -> None:
    (folder / "random_numbers.py").write_text(
        "import os, random, signal, sys, numpy, torch\n"
        "print(random.random(), numpy.random.random(), torch.rand(1).item())\n"
        "print(os.getpgrp() == os.getpid() == os.getsid(0), signal.getsignal(signal.SIGINT).__name__)\n"
        "print(len(os.environ), os.environ['OMP_NUM_THREADS'], os.path.exists('random_numbers.py'))\n"
        "print([name for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')])\n"
    )
    env = {"OMP_NUM_THREADS": "5", "PATH": ENVIRONMENT["PATH"]}
    with Nursery(run_dir, ENVIRONMENT, "random_numbers.py") as nursery:
        nursery.start_template(folder)
        standbys = nursery.fork(2)
        for standby in standbys:
            assert nursery.become(standby, ("random_numbers.py",), cwd=folder, env=env) == 0
        first, second = (nursery.output(standby)[0].splitlines() for standby in standbys)
    assert not set(first[0].split()) & set(second[0].split()), "all three generators are seeded anew"
    assert first[1:3] == ["True default_int_handler", "2 5 True"]
    assert first[3] == "['0', '1', '2']", "no descriptor of the template is left"
