"""Cases that every run plays, and those that only `scripts/test.sh --thorough` plays: more of another case's kind."""

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return all of `cases`, for `pytest.mark.parametrize`. Every run plays only those that are `chosen`."""
    known = list(cases)
    unknown = [case for case in chosen if case not in known]
    assert not unknown, f"no case {unknown}, there are {known}"
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.thorough) for case in known]
