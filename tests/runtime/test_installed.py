"""Module names of another node that a warm process would import."""

import sys
from pathlib import Path

import pytest

from taskd.runtime.system.installed import is_installed, only_installed


def test_only_packages_that_are_installed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_script.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    names = (
        "torch.optim", "msgspec", "zmq.utils.z85",
        "beside_the_script", "antigravity", "os", "taskd.api", "mpi4py.MPI", "__main__", "pip.__main__",
        "torch.__main__", "absent_from_here", "torch..optim", "torch.optim;x", "", ".", "../x", "/etc/passwd", "1",
    )  # fmt: skip
    assert only_installed(names) == ("torch.optim", "msgspec", "zmq.utils.z85")
    assert "beside_the_script" not in sys.modules
    assert "antigravity" not in sys.modules


def test_its_sender_has_the_same_rule() -> None:
    assert is_installed("msgspec", sys.modules["msgspec"].__file__)
    assert not is_installed("os", sys.modules["os"].__file__)
    assert not is_installed("taskd", sys.modules["taskd"].__file__)
    assert not is_installed("msgspec.__main__", sys.modules["msgspec"].__file__)
