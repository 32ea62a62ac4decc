"""Recognition of the user's modules."""

import sys
from types import ModuleType

import pytest
import torch

from taskd.adaptors.groups.sites import users_files


def test_a_templates_main_module_says_nothing_of_its_standbys(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__file__ = torch.__file__
    before = users_files()
    assert torch.__file__ not in before
    main.__file__ = "/home/user/train.py"
    assert users_files() == sorted([*before, "/home/user/train.py"])


def test_a_module_that_is_imported_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    users_files()
    later = ModuleType("of_the_user")
    later.__file__ = "/home/user/of_the_user.py"
    monkeypatch.setitem(sys.modules, "of_the_user", later)
    assert "/home/user/of_the_user.py" in users_files()
