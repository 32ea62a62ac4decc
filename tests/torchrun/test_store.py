"""Access to the store at which a new generation meets, and its guessable content."""

import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from taskd.adaptors.torchrun.store import NodeStore
from taskd.config.address import Address

ELSEWHERE = "127.0.0.2"
"""An address of this machine at which the store of one node is not served."""


@pytest.mark.parametrize("manager", [None, Address("127.0.0.1", 9601)], ids=["embedded", "on loopback"])
def test_nobody_else_reaches_the_store_of_one_node(manager: Address | None) -> None:
    store = NodeStore(manager)
    where = store.serve()
    assert where.host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ELSEWHERE, where.port), 5.0).close()
    client = TCPStore(where.host, where.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
    client.set("key", "value")
    assert client.get("key") == b"value"
    assert store.serve() == where


def test_what_its_keys_begin_with_cannot_be_guessed() -> None:
    keys = {NodeStore(None).serve().key for _ in range(2)}
    assert len(keys) == 2
    assert all(len(key) == 32 for key in keys)
