"""Manifests of checkpoints that another user has written or damaged, and other objects in place of files.

The checkpoint is skipped with one line, and the older one is loaded.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd.adaptors.training.checkpoints.checkpoint import load_latest
from tests.training.checkpoint_attack import LONG_S, Attack
from tests.training.checkpoint_state import make

pytestmark = [pytest.mark.timed, pytest.mark.timeout(2 * LONG_S)]

DEEP = b'{"later": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "taskd.json: "),
        (b"\0" * 4096, "taskd.json: "),
        (b"\xff\xfe{}", "taskd.json: "),
        (DEEP, "taskd.json: maximum recursion depth"),
        (DEEP[:200_000], "taskd.json: maximum recursion depth"),
        (b"[]", "Expected `object`"),
        (b'{"format": 1, "step": ' + b"9" * 100_000 + b"}", "$.step"),
        (b'{"format": 1, "step": 1e400}', "$.step"),
        (b'{"format": 1, "\\ud800": "\\ud800"}', "taskd.json: "),
        (b'{"format": 1, "\\u0000\\u001b[2J": "\x1b[2J"}', "taskd.json: "),
    ],
)
def test_a_manifest_that_is_none(attack: Attack, data: bytes, reason: str) -> None:
    (attack.path / "taskd.json").write_bytes(data)
    attack.fails(reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"step": -1}, "$.step"),
        ({"step": 2**64 - 1}, "$.step"),
        ({"step": "3"}, "$.step"),
        ({"world_size": 0}, "$.world_size"),
        ({"world_size": 10**18}, "$.world_size"),
        ({"identity": "f" * 400}, "$.identity"),
        ({"identity": "no hexadecimals"}, "$.identity"),
        ({"identity": ""}, "$.identity"),
        ({"job_id": "job\x1b[2J\n"}, "$.job_id"),
        ({"written_at": "x\0\x1b]0;title\x07" + "y" * 10_000}, "$.written_at"),
        ({"parts": {"model\x1b[31m\nred": "Net"}}, "$.parts"),
        ({"files": {"../../secret": 1}}, "$.files"),
        ({"files": {"/etc/passwd": 1}}, "$.files"),
        ({"files": {"..": 4096}}, "$.files"),
        ({"files": {"a\0b": 1}}, "$.files"),
        ({"files": {"\udc80\x1b[2J": 1}}, "taskd.json: "),
        ({"files": {".metadata": -1}}, "$.files"),
        ({"files": {".metadata": 1e300}}, "$.files"),
        ({"files": ["parts.msgpack"]}, "$.files"),
        ({"files": {"x" * 100_000: 1}}, "$.files"),
        ({"files": {}}, "it cannot be read: "),
        ({"format": 2}, "it has format 2, this taskd reads format 1"),
        ({"format": None}, "$.format"),
    ],
)
def test_a_manifest_with_strange_fields(attack: Attack, fields: dict[str, Any], reason: str) -> None:
    attack.change(**fields)
    attack.fails(reason)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = os.getcwd()
        os.chdir(path.parent)
        made.bind(path.name)
        os.chdir(before)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def gone(path: Path) -> None:
    path.symlink_to("/nowhere/to/be/found")


def gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


KINDS: list[Callable[[Path], None]] = [pipe, loop, listening, endless, gone, gigabytes, Path.mkdir]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["taskd.json", ".metadata", "parts.msgpack", "position-0.bin", "__0_0.distcp"])
def test_what_stands_in_place_of_a_file(attack: Attack, name: str, kind: Callable[[Path], None]) -> None:
    """The manifest gives each object the size that it appears to have."""
    path = attack.path / name
    path.unlink()
    kind(path)
    if name != "taskd.json" and path.exists():
        known = attack.manifest()
        attack.change(files={**known["files"], name: path.stat().st_size})
    attack.fails("")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_stands_in_place_of_a_checkpoint(
    attack: Attack, caplog: pytest.LogCaptureFixture, kind: Callable[[Path], None]
) -> None:
    kind(attack.shelf / "step-7")
    assert load_latest(make(5), attack.shelf) == 3
    assert caplog.text.count("is passed over") == caplog.text.count("step-7 is passed over: taskd.json: ") == 1
