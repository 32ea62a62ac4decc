"""Modules that a self-checking new process needs are imported in its template: in a recovery they would take 80 ms."""

import ast
import inspect
import textwrap

import pytest

from taskd.adaptors.torchrun.standby import CHECKING_MODULES
from taskd.adaptors.training.proof.first_steps import WatchedSteps
from taskd.adaptors.training.runtime import Runtime


@pytest.mark.parametrize("kind", [WatchedSteps, Runtime])
def test_what_a_newcomer_imports_late_is_there_before(kind: type) -> None:
    late = [
        str(node.module)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
        if isinstance(node, ast.ImportFrom)
    ]
    proofs = {name for name in late if name.startswith("taskd.adaptors.training.proof.")}
    assert proofs, "it imports nothing late any more: this test has nothing to hold"
    assert proofs <= set(CHECKING_MODULES)
