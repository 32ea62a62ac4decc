"""Location of the ranks' files, and the processes that search for them."""

import tempfile
from pathlib import Path

import pytest

from taskd.runtime.folders.rank_folders import SHARED_MEMORY, free_shared_memory, parents, temporary_folder
from taskd.runtime.records.lookup import agents_boxes


def test_boxes_in_the_temporary_folder_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        box = Path(folder) / "taskd-1-a" / "box-0-0"
        box.parent.mkdir()
        box.touch()
        assert parents() == [SHARED_MEMORY, Path(folder)]
        assert box in agents_boxes()


def test_a_deep_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 20)))
    assert temporary_folder() == Path("/tmp")


def test_no_shared_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskd.runtime.folders.rank_folders.SHARED_MEMORY", tmp_path / "none")
    assert free_shared_memory() == (0, "found none (No such file or directory); mount it: a tmpfs of 64 MB or more")
