"""A single bit that flips in a copy or on the way from a donor: refused wherever it is, never accepted silently."""

import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training import packing
from taskd.adaptors.training.copies.copy_file import HEAD_BYTES, CopyHead
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.copies.snapshot import Snapshot
from taskd.adaptors.training.manifest import HEAD_BYTES as FRAME_BYTES
from taskd.adaptors.training.state import TrainState
from taskd.errors import DistrustError
from taskd.wire.kinds import JobRank
from tests.training.test_copies import pieces
from tests.training.test_packing import LateLink

R0 = JobRank(0)
TRIED = 400
"""Number of bits that are flipped one by one, for each kind of byte. In the heads, every bit is flipped."""


def made(seed: int) -> TrainState:
    """Return a state with a varied manifest: an optimizer's numbers, a scheduler, a plain attribute."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model(torch.randn(5, 6)).sum().backward()
    optimizer.step()
    scheduler.step()
    return TrainState(model=model, optimizer=optimizer, scheduler=scheduler)


def content(state: TrainState) -> str:
    """Return the whole content as text."""
    parts = state._recovery.parts.replicated
    return repr({name: _plain(part.state_dict()) for name, part in sorted(parts.items())})


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


class Copied:
    """Copy of a state in a file."""

    def __init__(self, folder: CopyFolder) -> None:
        donor = made(0)
        snapshot = Snapshot()
        snapshot.take(donor._recovery, folder, R0, -1, lambda _size: "")
        file = snapshot.complete()
        assert file is not None
        file.seal(CopyHead(R0, 0, snapshot.size_bytes, snapshot.digest()))
        self.file, self.folder = file, folder
        self.size_bytes, self.wanted = snapshot.size_bytes, content(donor)
        self.receiver = made(1)

    def is_refused(self) -> bool:
        """Return whether loading refuses the copy. Require the original content if it does not."""
        file = self.folder.find(R0, 0)
        if file is None:
            return True
        try:
            packing.check(file)
        except DistrustError:
            file.position = 0
            with pytest.raises(DistrustError):
                packing.fill(self.receiver._recovery, file, 0)
            return True
        packing.fill(self.receiver._recovery, file, 0)
        assert content(self.receiver) == self.wanted
        return False


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Copied]:
    one = Copied(CopyFolder(pieces(tmp_path / "of-0"), R0))
    yield one
    one.folder.close()
    del one.file
    gc.collect()  # tensors that use its memory


def flipped(memory: Any, at: int, bit: int, look: Callable[[], bool]) -> bool:
    """Return the result of `look` with one bit flipped."""
    memory[at] ^= 1 << bit
    try:
        return look()
    finally:
        memory[at] ^= 1 << bit


def some(first: int, last: int) -> list[tuple[int, int]]:
    """Return positions of bits in these bytes, the same in each run."""
    chance = random.Random(first)
    return [(chance.randrange(first, last), chance.randrange(8)) for _ in range(TRIED)]


def test_a_copy_as_it_was_made_is_taken(copied: Copied) -> None:
    assert not copied.is_refused()


def test_every_bit_of_a_copys_head_counts(copied: Copied) -> None:
    head = memoryview(copied.file._map)
    length = int.from_bytes(head[8:12], "little")
    places = [(at, bit) for at in range(16 + length) for bit in range(8)]
    assert [place for place in places if not flipped(head, *place, copied.is_refused)] == []


def test_every_bit_before_a_copys_manifest_counts(copied: Copied) -> None:
    memory = copied.file.bytes(copied.size_bytes)
    places = [(at, bit) for at in range(FRAME_BYTES) for bit in range(8)]
    assert [place for place in places if not flipped(memory, *place, copied.is_refused)] == []


def test_bits_of_a_copys_manifest_and_tensors_count(copied: Copied) -> None:
    memory = copied.file.bytes(copied.size_bytes)
    size = int.from_bytes(memory[:8], "little")
    places = [*some(FRAME_BYTES, FRAME_BYTES + size), *some(FRAME_BYTES + size, copied.size_bytes)]
    assert [place for place in places if not flipped(memory, *place, copied.is_refused)] == []


def test_what_is_no_part_of_a_copy_changes_nothing(copied: Copied) -> None:
    behind = memoryview(copied.file._map)
    assert not flipped(behind, HEAD_BYTES - 1, 3, copied.is_refused)
    assert not flipped(behind, HEAD_BYTES + copied.size_bytes, 3, copied.is_refused)


def test_bits_of_a_travelling_state_count() -> None:
    donor, receiver = made(0), made(1)
    wanted = content(donor)
    chance = random.Random(7)
    link = LateLink()
    packing.send(*packing.pack(donor._recovery), link)
    sent = list(link.bytes)
    used = FRAME_BYTES + int.from_bytes(sent[0][:8], "little")
    places = [(0, at, bit) for at in range(FRAME_BYTES) for bit in range(8)]
    places += [(0, chance.randrange(FRAME_BYTES, used), chance.randrange(8)) for _ in range(TRIED)]
    places += [
        (number, chance.randrange(len(sent[number])), chance.randrange(8))
        for number in (chance.randrange(1, len(sent)) for _ in range(TRIED))
    ]
    taken = []
    for number, at, bit in places:
        link.bytes.clear()
        link.bytes.extend(sent)
        changed = bytearray(sent[number])
        changed[at] ^= 1 << bit
        link.bytes[number] = bytes(changed)
        try:
            packing.fill(receiver._recovery, link, 0)
            taken.append((number, at, bit))
        except DistrustError:
            pass
    assert taken == []
    link.bytes.clear()
    link.bytes.extend(sent)
    packing.fill(receiver._recovery, link, 0)
    assert content(receiver) == wanted
