"""A manager for each test that requests one."""

from collections.abc import Iterator

import pytest

from tests.wire.peers import ServingManager


@pytest.fixture
def manager() -> Iterator[ServingManager]:
    with ServingManager() as serving:
        yield serving
