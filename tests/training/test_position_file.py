"""The position file under kill -9, under garbage, and under paths that it must not use."""

import os
import random
import signal
from pathlib import Path

import pytest

from taskd.adaptors.training.position_file import CAPACITY_BYTES, SLOT_BYTES, SLOTS, PositionFile, Slot
from taskd.errors import RestoreError
from tests.launch import Launcher
from tests.training.job import ENVIRONMENT

pytestmark = pytest.mark.timeout(60)

WRITER = """
import sys
from taskd.adaptors.training.position_file import PositionFile, Slot
file = PositionFile(sys.argv[1])
step = 0
print("ready", flush=True)
while True:
    step += 1
    file.write(Slot.TENTATIVE, step, bytes([step % 251]) * (10_000 + step % 97))
    file.write(Slot.COMMITTED, step, bytes([step % 251]) * (10_000 + step % 97))
"""


def test_a_killed_writer_leaves_only_whole_entries(launcher: Launcher, tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "position"
    for _ in range(3):
        writer = launcher.start(["python", "-S", "-c", WRITER, str(path)], env=_light())
        file = _opened(path)
        reads = 0
        while reads < chance.randint(200, 2000):  # also while it writes: what is accepted is whole
            for step, payload in file.read().items():
                assert payload == bytes([step % 251]) * (10_000 + step % 97)
            reads += 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        after = file.read()
        assert after == file.read()
        assert len(after) >= 1
        newest = max(after)
        assert newest - 1 in after or newest - 2 in after or newest == 1
        file.close()
        path.unlink()


def _light() -> dict[str, str]:
    return ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{_site()}"}


def _site() -> str:
    import msgspec

    return str(Path(msgspec.__file__).parents[1])


def _opened(path: Path) -> PositionFile:
    file = PositionFile(str(path))
    while not file.read():
        os.sched_yield()
    return file


def test_random_bytes_are_not_accepted(tmp_path: Path) -> None:
    chance = random.Random(5)
    path = tmp_path / "position"
    file = PositionFile(str(path))
    for _ in range(200):
        path.write_bytes(b"")
        with path.open("r+b") as raw:
            raw.write(chance.randbytes(SLOTS * SLOT_BYTES))
        assert file.read() == {}
    file.close()


def test_one_flipped_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "position"
    file = PositionFile(str(path))
    file.write(Slot.COMMITTED, 4, b"x" * 100)
    assert file.read() == {4: b"x" * 100}
    with path.open("r+b") as raw:
        raw.seek(60)
        raw.write(b"y")
    assert file.read() == {}
    file.close()


def test_slots(tmp_path: Path) -> None:
    file = PositionFile(str(tmp_path / "position"))
    assert file.read() == {}
    file.write(Slot.COMMITTED, 0, b"zero")
    file.write(Slot.COMMITTED, 1, b"one")
    file.write(Slot.TENTATIVE, 2, b"maybe two")
    assert file.read() == {0: b"zero", 1: b"one", 2: b"maybe two"}
    file.write(Slot.COMMITTED, 2, b"two")
    assert file.read() == {1: b"one", 2: b"two"}
    file.write(Slot.COMMITTED, 3, b"z" * CAPACITY_BYTES)
    with pytest.raises(ValueError, match="does not fit"):
        file.write(Slot.COMMITTED, 5, b"z" * (CAPACITY_BYTES + 1))
    assert file.read()[3] == b"z" * CAPACITY_BYTES
    file.close()


def test_mode_and_refused_paths(tmp_path: Path) -> None:
    path = tmp_path / "position"
    PositionFile(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "short").write_bytes(b"short")
    for bad, message in (("link", "cannot be opened"), ("short", "5 bytes"), ("none/there", "cannot be opened")):
        with pytest.raises(RestoreError, match=message):
            PositionFile(str(tmp_path / bad))
