import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.runtime.box.blackbox import Box


@pytest.fixture
def make_box(leak_mark: str) -> Iterator[Callable[[], Box]]:
    made: list[Box] = []

    def make() -> Box:
        made.append(Box.create(Path("/dev/shm") / f"taskd-test-{uuid.uuid4().hex}"))
        return made[-1]

    yield make
    for box in made:
        box.close()
        box.unlink()


@pytest.fixture
def box(make_box: Callable[[], Box]) -> Box:
    return make_box()
