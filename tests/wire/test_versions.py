"""Two builds of one wire version understand each other, and two of different ones report that on both sides."""

import difflib
import logging
from typing import Annotated

import msgspec
import pytest
import zmq
from msgspec import Meta, inspect

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.links import AgentSocket
from taskd.wire import codec, messages
from tests.wire import schema
from tests.wire.peers import LIMIT_S, NONE, SECRET, ServingManager, ask, raw_dealer, refused, status, until

ANOTHER = codec.MAGIC + bytes([codec.WIRE_VERSION + 1])


def test_messages_change_only_with_their_version() -> None:
    version, text = schema.recorded()
    changed = "\n".join(difflib.unified_diff(text.splitlines(), schema.schema().splitlines(), "recorded", "now", n=0))
    assert not changed, (
        f"messages differ from those of wire version {version}: raise WIRE_VERSION (taskd/wire/codec.py) above it, and "
        f"run python -m tests.wire.schema\n{changed}"
    )
    assert version == codec.WIRE_VERSION, "run python -m tests.wire.schema"


def shown(*fields: object, tag: str = "A", array_like: bool = False) -> str:
    kind = msgspec.defstruct("Message", fields, tag=tag, array_like=array_like)  # type: ignore[arg-type]
    known: dict[str, str] = {}
    schema._name(inspect.type_info(kind), known)
    return "".join(known.values())


def test_the_record_shows_every_kind_of_change() -> None:
    x, y = ("x", Annotated[int, Meta(le=9)], 1), ("y", str, "")
    first = shown(x, y)
    others = [
        shown(("x", Annotated[int, Meta(le=8)], 1), y),
        shown(("x", Annotated[int, Meta(le=9)], 2), y),
        shown(("x", Annotated[float, Meta(le=9)], 1), y),
        shown(("x", Annotated[int, Meta(le=9)]), y),
        shown(("z", Annotated[int, Meta(le=9)], 1), y),
        shown(y, x),
        shown(x, y, ("z", int, 0)),
        shown(x, y, tag="B"),
        shown(x, y, array_like=True),
        shown(x, ("y", messages.Order, messages.Order.RUN)),
        shown(x, ("y", tuple[str, ...], ())),
    ]
    assert first not in others
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("security", [SECRET, NONE], ids=["secret", "none"])
def test_an_agent_of_another_version_is_named_and_told(security, caplog: pytest.LogCaptureFixture) -> None:
    context = zmq.Context()
    with ServingManager(security=security) as manager:
        dealer = raw_dealer(manager.address, context, security.secret)
        for _ in range(3):
            dealer.send(ANOTHER + codec.encode(status())[3:])
            assert dealer.poll(int(LIMIT_S * 1000)), "the manager does not answer"
            assert dealer.recv() == codec.HEADER
        refused(manager, codec.FrameFault.VERSION.value, 3)
        assert manager.served == 0
        with AgentSocket(manager.address, security) as agent:
            ask(agent, 1)
    context.destroy(linger=0)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    here, there = codec.WIRE_VERSION, codec.WIRE_VERSION + 1
    assert f"found a frame of wire version {there}, this taskd speaks version {here}: install the same taskd" in told
    assert LOOPBACK in told


def test_a_manager_of_another_version_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its answer has only its version. A later honest answer clears the error."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port(f"tcp://{LOOPBACK}")
    with AgentSocket(Address(LOOPBACK, port), NONE) as agent:
        until(agent, lambda _: agent.connected)
        assert agent.trouble is None
        for _ in range(2):
            assert agent.send(status())
            peer, _ = router.recv_multipart()
            router.send_multipart([peer, ANOTHER])
        until(agent, lambda _: agent.refused["version"] == 2)
        assert f"the manager at {LOOPBACK}:{port} is a taskd of another version" in (agent.trouble or "")
        assert "this taskd speaks version" in (agent.trouble or "")
        router.send_multipart([peer, codec.encode(messages.Refusal(reason="x"))])
        until(agent, bool)
        assert agent.trouble is None
    context.destroy(linger=0)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "install the same taskd on every node" in told
