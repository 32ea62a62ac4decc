"""Files that a new process's set-up would empty or recreate are reported as the training function is entered."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import taskd
from taskd.adaptors.training.proof.set_up_writes import SetUpWrites, is_another_each_time
from taskd.runtime.worker.set_up_files import FileEvent, SetUpFiles

FILE = Path(__file__)
kept: list[Any] = []


@contextmanager
def trained(set_up: Callable[[], object]) -> Iterator[list[str]]:
    """Run a set-up and yield its reports. The block is the training."""
    told: list[str] = []
    files = SetUpFiles()
    files.start()
    set_up()
    writes = SetUpWrites(files, told.append)
    writes.enter()
    try:
        yield told
    finally:
        writes.close()
        for one in kept:
            one.close()
        kept.clear()


def log_handler(path: Path) -> None:
    kept.append(logging.FileHandler(path, mode="w"))


EMPTIES: dict[str, Callable[[Path], object]] = {
    "open": lambda path: kept.append(path.open("w")),
    "binary": lambda path: kept.append(path.open("wb")),
    "handler": log_handler,
}


@pytest.mark.parametrize("how", EMPTIES)
def test_a_file_that_the_training_goes_on_to_write(how: str, tmp_path: Path) -> None:
    with trained(lambda: EMPTIES[how](tmp_path / "log.txt")) as told:
        pass
    (text,) = told
    assert text.startswith(f"{FILE}:")
    assert f" empties {tmp_path}/log.txt in the set-up, and the training writes to it" in text


def by_expression(path: Path) -> None:
    kept.append(path.open("a" if taskd.restart_count() else "w"))


def by_condition(path: Path) -> None:
    if taskd.restart_count() == 0:
        kept.append(path.open("w"))


def with_folder(path: Path) -> None:
    if not taskd.restart_count():
        (path.parent / f"run-{os.getpid()}").mkdir()


@pytest.mark.parametrize("how", [by_expression, by_condition, with_folder])
def test_what_only_the_first_start_does_is_fine(how: Callable[[Path], None], tmp_path: Path) -> None:
    with trained(lambda: how(tmp_path / "log.txt")) as told:
        pass
    assert told == []


def test_a_condition_elsewhere_excuses_nothing(tmp_path: Path) -> None:
    def set_up() -> None:
        mode = "a" if taskd.restart_count() else "w"
        kept.append((tmp_path / "first.txt").open("w"))
        kept.append((tmp_path / mode).open(mode))

    with trained(set_up) as told:
        pass
    assert len(told) == 2


@pytest.mark.parametrize("mode", ["a", "w", "r+"])
def test_a_file_that_is_opened_again(mode: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with trained(lambda: log.write_text("")) as told:
        assert told == []
        for _ in range(2):
            log.open(mode).close()
        assert len(told) == 1
    assert f" empties {log} in the set-up" in told[0]


HARMLESS: dict[str, Callable[[Path], object]] = {
    "a settings file": lambda folder: (folder / "settings.json").write_text("{}"),
    "appended": lambda folder: kept.append((folder / "log").open("a")),
    "read": lambda folder: kept.append(FILE.open()),
    "events of TensorBoard's": lambda folder: kept.append(
        (folder / f"events.out.tfevents.{int(time.time())}.host.{os.getpid()}.0").open("wb")
    ),
    "a fixed folder": lambda folder: (folder / "checkpoints").mkdir(),
    "a folder that may be there": lambda folder: os.makedirs(folder / "run7", exist_ok=True),
    "a folder that stands in the script": lambda folder: (folder / "gpt2-124M").mkdir(),
}


@pytest.mark.parametrize("how", HARMLESS)
def test_it_is_harmless(how: str, tmp_path: Path) -> None:
    with trained(lambda: HARMLESS[how](tmp_path)) as told:
        (tmp_path / "settings.json").read_text() if how == "a settings file" else None
    assert told == []


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "counted": lambda runs: runs / f"run{len(list(runs.iterdir()))}",
    "by process": lambda runs: runs / f"job-{os.getpid()}",
    "by seconds": lambda runs: runs / f"at{int(time.time())}",
    "by time": lambda runs: runs / time.strftime("%Y-%m-%d_%H-%M-%S"),
    "as TensorBoard's": lambda runs: runs / (time.strftime("%b%d_%H-%M-%S") + "_host"),
    "in one word": lambda runs: runs / time.strftime("%Y%m%d%H%M%S"),
}


@pytest.mark.parametrize("how", FOLDERS)
def test_a_folder_of_another_name_each_time(how: str, tmp_path: Path) -> None:
    folder = FOLDERS[how](tmp_path)
    with trained(lambda: folder.mkdir() if how == "counted" else os.makedirs(folder, exist_ok=True)) as told:
        pass
    (text,) = told
    assert text.startswith(f"{FILE}:")
    assert f" makes the folder {folder} in the set-up" in text


def test_a_folder_that_was_there_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / f"job-{os.getpid()}"
    folder.mkdir()
    with trained(lambda: os.makedirs(folder, exist_ok=True)) as told:
        pass
    assert told == []


@pytest.mark.parametrize(
    ("name", "exclusive", "found"),
    [
        ("lr0.1_bs32", False, False),
        ("lr0.1_bs32", True, True),
        ("2026-11-28_1422", False, False),  # from a different time
        ("epochs", True, False),
        ("exp3", True, False),  # appears in the text
    ],
)
def test_names(name: str, exclusive: bool, found: bool) -> None:
    then = time.mktime((2001, 2, 3, 4, 5, 6, 0, 0, -1))
    event = FileEvent(f"/runs/{name}", (), exclusive, then)
    assert is_another_each_time(event, "python train.py --name exp3") is found


def test_other_threads_and_the_training_do_not_count(tmp_path: Path) -> None:
    with trained(lambda: None) as told:
        (tmp_path / f"job-{os.getpid()}").mkdir()
        (tmp_path / "log").write_text("")
    assert told == []
