"""Ranks that check the first steps of a training. The others load none of the modules for it."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from taskd.adaptors.training.proof.first_steps import NoFirstSteps, first_steps_of, is_checked, read_beforehand
from taskd.core.policy import SelfCheck

LOADED = "import sys, taskd.adaptors.training; print(*(name for name in sys.modules if '.training.proof.' in name))"


def process(wanted: SelfCheck, *, joins: bool) -> Any:
    """Return a runtime with the settings that decide whether it checks."""
    return SimpleNamespace(link=SimpleNamespace(joins=joins, config=SimpleNamespace(self_check=wanted)))


@pytest.mark.parametrize(
    ("wanted", "joins", "checks"),
    [
        (SelfCheck.AUTO, False, True),
        (SelfCheck.ALWAYS, False, True),
        (SelfCheck.AUTO, True, False),
        (SelfCheck.OFF, False, False),
    ],
)
def test_who_checks(wanted: SelfCheck, *, joins: bool, checks: bool) -> None:
    assert is_checked(process(wanted, joins=joins)) is checks


@pytest.mark.parametrize("joins", [True, False])
def test_a_job_without_checks_does_nothing(*, joins: bool) -> None:
    nothing: Any = None
    runtime = process(SelfCheck.OFF, joins=joins)
    read_beforehand(nothing, ((), {}), nothing, runtime)
    assert isinstance(first_steps_of(runtime, nothing, nothing), NoFirstSteps)


def test_a_newcomer_is_not_read() -> None:
    nothing: Any = None
    read_beforehand(nothing, ((), {}), nothing, process(SelfCheck.AUTO, joins=True))


def test_nothing_of_the_checks_is_loaded_for_others() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["taskd.adaptors.training.proof.first_steps"]
