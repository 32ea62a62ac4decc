"""Reports of a failed set-up: the damaged file, and whether it repeats the former failure."""

import io
import json
import pickle
import socket
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from taskd.adaptors.torchrun.set_up_ends import FormerEnd, is_stock, torn_file, with_file


def error_of(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whichever the library has
        call()
    return raised.value


def read_pickle(path: Path) -> object:
    with path.open("rb") as file:
        return pickle.load(file)


def read_json(path: Path) -> object:
    with path.open() as file:
        return json.load(file)


@pytest.mark.parametrize(
    ("read", "whole"),
    [(torch.load, None), (read_pickle, pickle.dumps([1] * 99)), (read_json, b'{"step": 12}')],
    ids=["torch", "pickle", "json"],
)
def test_a_torn_file_is_named(tmp_path: Path, read: Callable[[Path], object], whole: bytes | None) -> None:
    path = tmp_path / "last"
    if whole is None:
        torch.save({"weight": torch.ones(99)}, path)
        whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    error = error_of(lambda: read(path))
    assert torn_file(error) == str(path)
    assert with_file("E: no.", error).startswith(f"E: no; the file {path} is torn or damaged: remove it or put")


def test_an_error_of_no_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    with path.open() as log:
        assert not log.closed
        assert with_file("ValueError: no", error_of(lambda: int("no"))) == "ValueError: no"


def ask_server(path: Path) -> object:
    assert path.exists()
    return json.loads("<html>502 Bad Gateway")


def hear_worker(path: Path) -> object:
    ours, its = Pipe()
    its.close()
    with ours, path.open("rb") as file:
        assert file.readable()
        return ours.recv()


def unpickle_answer(path: Path) -> object:
    ours, its = socket.socketpair()
    its.close()
    with path.open("rb") as file, ours, ours.makefile("rb") as answer:
        assert file.readable()
        return pickle.load(answer)


def unpickle_text(path: Path) -> object:
    assert path.exists()
    return pickle.loads(pickle.dumps([1] * 99)[:50])


def ask_user(path: Path) -> object:
    with path.open() as file:
        assert file.readable()
        return input()


@pytest.mark.parametrize("call", [ask_server, hear_worker, unpickle_answer, unpickle_text, ask_user])
def test_a_healthy_file_beside_what_fails_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    file = tmp_path / "README.md"
    file.write_text("# A job")
    path = filename = file  # a script's `main` may use these names
    assert filename.exists()
    assert with_file("E: no.", error_of(lambda: call(path))) == "E: no."


def read_whole(path: Path) -> object:
    with path.open() as file:
        text = file.read()
        return json.loads(text)


def read_tensors(path: Path) -> object:
    return torch.load(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("read", [read_whole, read_tensors])
def test_a_file_that_was_perhaps_read_may_be_damaged(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "last"
    path.write_bytes(b"PK\x03\x04")
    error = error_of(lambda: read(path))
    assert with_file("E: no.", error) == f"E: no; the file {path} may be damaged: check it"


def fail(text: str) -> None:
    raise ValueError(text)


def test_the_same_end_is_known_again(tmp_path: Path) -> None:
    former = FormerEnd(tmp_path / "failed-0")
    errors = [error_of(lambda text=text: fail(text)) for text in ("batch 7", "batch 12", "no batch")]  # type: ignore[misc]
    assert [former.is_repeated(error) for error in errors] == [False, True, False]
    assert not FormerEnd(None).is_repeated(errors[0])


def test_a_hook_of_the_scripts_own_is_called() -> None:
    assert is_stock(sys.__excepthook__)
    assert not is_stock(lambda *_: None)
    assert not is_stock(None)
