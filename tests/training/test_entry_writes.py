"""Files that a training function empties, removes or renames as it is entered are named with the script's line."""

import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from taskd.adaptors.training.proof.entry_writes import EntryWrites

FILE = Path(__file__)


@contextmanager
def watched() -> Iterator[EntryWrites]:
    """Watch the files that are changed inside the block."""
    made = EntryWrites()
    made.start()
    try:
        yield made
    finally:
        made.stop()


def fill(path: Path) -> Path:
    with path.open("a") as file:  # appending is harmless
        file.write("text")
    return path


def by_a_compiler(folder: Path) -> None:
    """Write a header beside kernels, as inductor does, in a folder of the user's choice."""
    names: dict[str, object] = {"__name__": "torch._inductor.codecache"}
    exec("def write(path):\n    path.write_text('header')", names)
    names["write"](folder / "header.hpp")  # type: ignore[operator]


HARMFUL: dict[str, tuple[Callable[[Path], object], str]] = {
    "written": (lambda folder: (folder / "log").write_text("new"), "empties {folder}/log"),
    "opened": (lambda folder: os.close(os.open(folder / "log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)), "empties"),
    "removed": (lambda folder: fill(folder / "old").unlink(), "removes {folder}/old"),
    "removed folder": (shutil.rmtree, "removes {folder}"),
    "renamed": (lambda folder: fill(folder / "old").rename(folder / "new"), "renames {folder}/old"),
    "saved": (lambda folder: torch.save({}, folder / "last.pt"), "empties {folder}/last.pt"),
    "saved by a library": (lambda folder: torch.serialization.save({}, f=str(folder / "last.pt")), "empties {folder}"),
}
HARMLESS: dict[str, Callable[[Path], object]] = {
    "appended": lambda folder: fill(folder / "log"),
    "read": lambda folder: fill(folder / "log").read_text(),
    "made": lambda folder: (folder / "runs").mkdir(),
    "cached": lambda folder: (folder / "__pycache__.x").write_text(""),
    "kept in memory": lambda folder: torch.save({}, io.BytesIO()),
    "compiled": by_a_compiler,
    "temporary": lambda folder: tempfile.NamedTemporaryFile(dir=folder, mode="x", delete=False).close(),
}


@pytest.mark.parametrize("how", HARMFUL)
def test_it_is_named(how: str, tmp_path: Path) -> None:
    act, text = HARMFUL[how]
    with watched() as writes:
        act(tmp_path)
    assert text.format(folder=tmp_path) in writes.found
    assert writes.found.startswith(f"{FILE}:")
    assert writes.found.endswith(" each time it is entered")


@pytest.mark.parametrize("how", HARMLESS)
def test_it_is_harmless(how: str, tmp_path: Path) -> None:
    with watched() as writes:
        HARMLESS[how](tmp_path)
    assert not writes.found


def test_the_writers_are_put_back_unless_somebody_has_replaced_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own, own_too = torch.save, torch.serialization.save
    with watched():
        assert torch.save is not own
        monkeypatch.setattr(torch.serialization, "save", replaced := object())
    assert torch.save is own
    assert torch.serialization.save is replaced
    monkeypatch.setattr(torch.serialization, "save", own_too)


def test_other_threads_and_later_writes_do_not_count(tmp_path: Path) -> None:
    with watched() as writes:
        thread = threading.Thread(target=(tmp_path / "log").write_text, args=("text",))
        thread.start()
        thread.join()
    (tmp_path / "log").write_text("text")
    assert not writes.found
