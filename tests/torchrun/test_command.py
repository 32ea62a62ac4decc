"""The meaning of a rank's command, and the prefixes of a world's store keys: pure text."""

import pytest

from taskd.adaptors.torchrun.command import TEMPLATE, injection, parse_command, template_arguments
from taskd.adaptors.torchrun.script import Meetings, mark_round, store_prefix

PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("entrypoint", "args", "argv"),
    [
        (PYTHON, ("-u", "train.py", "--lr", 1), ("train.py", "--lr", "1")),
        (PYTHON, ("-u", "-m", "package.train", "-u"), ("-m", "package.train", "-u")),
        (PYTHON, ("train.py",), ("train.py",)),
        ("/venv/bin/../bin/python", ("train.py", "-m"), ("train.py", "-m")),
    ],
)
def test_scripts_and_modules_can_be_warm(entrypoint: str, args: tuple[object, ...], argv: tuple[str, ...]) -> None:
    command = parse_command(entrypoint, args, PYTHON)
    assert command.python
    assert command.argv == argv
    assert template_arguments(command) == ("-u", *argv, TEMPLATE)


@pytest.mark.parametrize(
    ("entrypoint", "args", "reason"),
    [
        ("/bin/bash", ("train.sh",), "/bin/bash is not torchrun's own Python"),
        ("/other/bin/python", ("-u", "train.py"), "not torchrun's own Python"),
        (PYTHON, ("-u", "-c", "pass"), "expected a script or -m"),
        (PYTHON, ("-u", "-m"), "expected a script or -m"),
        (PYTHON, (), "expected a script or -m"),
        (print, ("train.py",), "a function"),
    ],
)
def test_anything_else_starts_cold_and_says_why(entrypoint: object, args: tuple[object, ...], reason: str) -> None:
    command = parse_command(entrypoint, args, PYTHON)
    assert not command.python
    assert reason in command.reason
    assert template_arguments(command) == ("-u", "-c", "", TEMPLATE), "for node checks"


def test_ranks_of_one_start_share_their_keys_whatever_their_agents_generation() -> None:
    older = mark_round("abc", "7") | {"TASKD_GENERATION": "7"}
    younger = mark_round("abc", "0") | {"TASKD_GENERATION": "0"}
    assert store_prefix(older) == store_prefix(younger) == "taskd/abc"


def test_worlds_have_keys_of_their_own() -> None:
    first = mark_round("abc", "0")
    prefixes = [store_prefix(first | {"TASKD_GENERATION": str(number)}) for number in range(3)]
    restarted = store_prefix(mark_round("def", "3") | {"TASKD_GENERATION": "3"})
    assert len({*prefixes, restarted}) == 4


def test_each_meeting_has_keys_of_its_own() -> None:
    """This also holds if a rank has been in a default group with others meanwhile, or if a meeting has failed."""
    env, meetings, other = mark_round("abc", "0"), Meetings(), Meetings()
    assert [meetings.prefix(env, made) for made in (0, 0, 1, 2)] == ["taskd/abc"] * 2 + ["taskd/abc/1", "taskd/abc/2"]
    assert [other.prefix(env, made) for made in (1, 3)] == ["taskd/abc", "taskd/abc/1"]


def test_who_lived_through_a_recovery_meets_who_came_then() -> None:
    env, survivor, newcomer = mark_round("abc", "0"), Meetings(), Meetings()
    for made in range(3):
        survivor.prefix(env, made)
    for meetings in (survivor, newcomer):
        meetings.rebuilt(7)
    assert survivor.prefix(env, 3) == newcomer.prefix(env, 1) == "taskd/rebuilt/7"
    assert survivor.prefix(env, 4) == newcomer.prefix(env, 2) == "taskd/rebuilt/7/1"


def test_ranks_of_a_torchrun_under_a_wrapper_are_their_own_torchruns() -> None:
    """If the wrapper is no Python that taskd knows, its environment still names the interpreter of the outer one."""
    outer = {"TASKD_WRAPPED": "cpython-310:/opt/other"}
    plain, wrapped = (parse_command(name, ["train.py"], "/usr/bin/python") for name in ("/usr/bin/python", "numactl"))
    assert injection(plain, outer)["TASKD_WRAPPED"] == ""
    assert injection(wrapped, outer)["TASKD_WRAPPED"] not in ("", outer["TASKD_WRAPPED"])
    assert "TASKD_WRAPPED" not in injection(plain, {})
