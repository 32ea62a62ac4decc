"""Descriptors that torch and libuv open once per process are opened before the leak census of the first test."""

import pytest
from torch._C._distributed_c10d import TCPStore


@pytest.fixture(autouse=True, scope="session")
def one_off_descriptors() -> None:
    """Make and drop a store: libuv keeps a signal pipe for the rest of the process."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
