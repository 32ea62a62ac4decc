"""Files of a checkpoint: readable by this user alone, and never written through a neighbour's files."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.checkpoints.reader import writer
from taskd.adaptors.training.state import TrainState
from taskd.errors import FolderError
from taskd.runtime.folders.ownfolder import OwnFolder
from tests.training.checkpoint_state import contents, make, train

NEIGHBOUR = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory can be made by root alone")


def modes(shelf: Path) -> dict[str, str]:
    paths = [shelf.parent, shelf, *shelf.rglob("*")]
    return {str(path.relative_to(shelf.parent)): oct(path.stat().st_mode & 0o777) for path in paths}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_written_is_for_this_user_alone(tmp_path: Path, umask: int) -> None:
    state, shelf = make(1), tmp_path / "new" / "shelf"
    train(state, 1)
    before = os.umask(umask)
    try:
        path = dump(state._recovery, shelf, step=1, job_id="job", reason="")
    finally:
        os.umask(before)
    found = modes(shelf)
    folders = {".", "shelf", "shelf/step-1"}
    assert {name for name in found if (shelf.parent / name).is_dir()} == folders
    assert {found[name] for name in folders} == {"0o700"}
    assert {found[name] for name in found.keys() - folders} == {"0o600"}
    assert {name.rpartition("/")[2] for name in found.keys() - folders} == set(os.listdir(path))


def test_what_the_user_has_opened_to_others_stays_open(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    state = make(1)
    train(state, 1)
    path = dump(state._recovery, tmp_path, step=1, job_id="job", reason="")
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    os.chmod(path, 0o750)
    for file in path.iterdir():
        os.chmod(file, 0o440)
    assert load_latest(make(5), tmp_path) == 1


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata.tmp"])
def test_torch_does_not_write_through_a_link(tmp_path: Path, name: str) -> None:
    from torch.distributed import checkpoint

    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = OwnFolder(tmp_path / "folder")
    (folder.path / name).symlink_to(precious)
    try:
        with pytest.warns(UserWarning, match="single process"), pytest.raises(checkpoint.CheckpointException):
            checkpoint.save({"x": torch.ones(3)}, storage_writer=writer(folder))
    finally:
        folder.close()
    assert precious.read_text() == "mine"


def test_torch_writes_into_the_folder_that_was_opened(tmp_path: Path) -> None:
    """This holds for any other file or folder that has replaced it under its name."""
    from torch.distributed import checkpoint

    folder = OwnFolder(tmp_path / "folder")
    away, theirs = tmp_path / "away", tmp_path / "theirs"
    theirs.mkdir()
    folder.path.rename(away)
    folder.path.symlink_to(theirs)
    try:
        with pytest.warns(UserWarning, match="single process"):
            checkpoint.save({"x": torch.ones(3)}, storage_writer=writer(folder))
        files.write(folder, "parts.msgpack", b"")
    finally:
        folder.close()
    assert not list(theirs.iterdir())
    assert sorted(os.listdir(away)) == [".metadata", "__0_0.distcp", "parts.msgpack"]


def test_no_file_is_written_over_what_is_there(tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path / "folder")
    (folder.path / "parts.msgpack").symlink_to(tmp_path / "new")
    (folder.path / "position-0.bin").write_text("mine")
    try:
        for name in ("parts.msgpack", "position-0.bin"):
            with pytest.raises((FileExistsError, FolderError)):
                files.write(folder, name, b"ours")
    finally:
        folder.close()
    assert not (tmp_path / "new").exists()


class Watcher:
    """Part of the state that acts like a neighbour who notices that a checkpoint is being written."""

    def __init__(self, *names: Path) -> None:
        self.names = names

    def state_dict(self) -> dict[str, Any]:
        for name in self.names:
            (name / "nothing").mkdir(parents=True)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def test_a_neighbour_takes_the_names_meanwhile(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1)}
    taken = [tmp_path / "step-0", tmp_path / "step-0.1"]
    written: Any = {**parts, "data": {"his_sampler": Watcher(*taken)}}
    path = dump(TrainState(**written)._recovery, tmp_path, step=0, job_id="job", reason="")
    assert path == tmp_path / "step-0.2"
    assert not list(tmp_path.glob(".*"))
    read: Any = {**parts, "data": {"his_sampler": Watcher()}}
    assert load_latest(TrainState(**read), tmp_path) == 0


@pytest.mark.root
@as_root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_neighbour_says_that_the_step_is_written(tmp_path: Path, is_link: bool) -> None:
    """In a directory open to all users, a neighbour has made a complete one of the same job and step."""
    state = make(1)
    train(state, 3)
    shelf = tmp_path / "shelf"
    ours = dump(state._recovery, shelf, step=3, job_id="job", reason="")
    if is_link:
        ours.rename(shelf / "step-1")
        ours.symlink_to("step-1")
    os.chown(ours, NEIGHBOUR, NEIGHBOUR, follow_symlinks=False)
    again = dump(state._recovery, shelf, step=3, job_id="job", reason="")
    assert again == shelf / "step-3.1"
    assert dump(state._recovery, shelf, step=3, job_id="job", reason="") == again
    os.truncate(ours / "taskd.json", 5)
    other = make(5)
    assert load_latest(other, shelf) == 3
    assert contents(other) == contents(state)


def test_names_that_a_terminal_obeys_can_be_loaded_again(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    parts: dict[str, Any] = {"model\x1b[2J\n": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1)}
    dump(TrainState(**parts)._recovery, tmp_path, step=0, job_id="job\n", reason="two\nlines\x1b" + "x" * 10_000)
    assert load_latest(TrainState(**parts), tmp_path) == 0
