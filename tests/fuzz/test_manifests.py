"""A thousandth of the attacks on checkpoints that `python -m tests.fuzz.manifests` makes before a release."""

import pickle
import random
from pathlib import Path

import pytest

from tests.fuzz import manifests, pickles


def test_bytes() -> None:
    counts = manifests.run(seed=1, count=1000)
    assert counts.total() == 1000
    assert min(counts.values()) > 20, counts  # refusals are not the only result
    assert counts == manifests.run(seed=1, count=1000)


@pytest.mark.timeout(120)
def test_whole_checkpoints(tmp_path: Path) -> None:
    counts = manifests.run_files(seed=1, count=60, folder=tmp_path)
    assert counts.total() == 60
    assert {name.partition(":")[0] for name in counts} == {
        "taskd.json", ".metadata", "parts.msgpack", "position-0.bin", "__0_0.distcp"
    }  # fmt: skip


def test_the_attacks_strike_who_unpickles() -> None:
    for operations in pickles.bases(random.Random(1)):
        try:
            pickle.loads(b"".join(operations))
        except Exception:  # noqa: BLE001, PERF203 - an odd attribute
            continue
    assert len(pickles.struck) > 5
    pickles.struck.clear()
