"""Copies between nodes: admission of peers, accepted messages, and the cost of strangers at the port."""

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from torch.distributed import HashStore

from taskd.adaptors.training.copies import exchange
from taskd.adaptors.training.copies.copy_file import CopyHead
from taskd.adaptors.training.copies.exchange import Exchange
from taskd.adaptors.training.copies.folder import CopyFolder, Incoming
from taskd.adaptors.training.copies.ring import Neighbours
from taskd.config.address import LOOPBACK, Address
from taskd.errors import CopyError, LinkError
from taskd.runtime.agent.threads import look
from taskd.runtime.links import peers
from taskd.runtime.links.identity import peers_key
from taskd.runtime.links.peers import FRAME_BYTES, Ends, PeerLink
from taskd.runtime.system.hidden import ZEROMQ_NAMES
from taskd.wire.kinds import JobRank

R0, R1, R7 = JobRank(0), JobRank(1), JobRank(7)
KEY = peers_key(b"for these tests alone, 0123456789", "default")
WORLD = "taskd/abc/3 1"
LIMIT_S = 20.0
SILENT = 120


def asked(question: Callable[[], object]) -> object:
    """Answer a question as a store does that is present."""
    return question()


@contextlib.contextmanager
def ring(world: str = WORLD, stopped: Callable[[], bool] = lambda: False) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield two ranks that are each other's neighbours."""
    store, made = HashStore(), {}

    def join(rank: JobRank, other: JobRank) -> None:
        made[rank] = Exchange(store, LOOPBACK, world, rank, Neighbours(other, other), KEY, stopped, asked)

    both(lambda: join(R0, R1), lambda: join(R1, R0))
    try:
        yield made[R0], made[R1]
    finally:
        for one in made.values():
            one.close()


def both(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Call each function on a thread of its own. Return the errors."""
    raised: list[BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            calls[number]()
        except Exception as error:  # noqa: BLE001 - the test asks for it
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a wait that has no end"
    return raised


def linked(link: PeerLink, address: Address, limit_s: float = LIMIT_S) -> bool:
    """Return whether this end is admitted at `address` and can send."""
    link.connect(address)
    end_s = time.monotonic() + limit_s
    while not link.send(exchange._HELLO):
        link.wait(reads=False, writes=True, limit_s=0.02)
        if link.trouble or time.monotonic() > end_s:
            return False
    return True


@contextlib.contextmanager
def waiting(stopped: Callable[[], bool], found: list[BaseException]) -> Iterator[Address]:
    """Let rank 0 wait for rank 1, its buddy and its ward. Yield its address; `found` receives its error."""
    store = HashStore()
    store.set("address/1", f"{LOOPBACK}:9")

    def join() -> None:
        try:
            Exchange(store, LOOPBACK, WORLD, R0, Neighbours(R1, R1), KEY, stopped, asked).close()
        except CopyError as error:
            found.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    while not store.check(["address/0"]):
        time.sleep(0.01)  # until the other thread has written it
    address = exchange._address(store.get("address/0"), R0)
    yield address
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def room_for(kept: list[bytearray]) -> Callable[[CopyHead], memoryview]:
    def room(head: CopyHead) -> memoryview:
        kept.append(bytearray(head.size_bytes))
        return memoryview(kept[-1])

    return room


@pytest.mark.parametrize("size_bytes", [1, FRAME_BYTES, 3 * FRAME_BYTES + 7])
def test_both_ranks_get_what_the_other_has_sent(size_bytes: int) -> None:
    mine, yours = bytes([1]) * size_bytes, bytes([2]) * (size_bytes + 1)
    kept: dict[int, list[bytearray]] = {0: [], 1: []}
    with ring() as (first, second):

        def swap(step: int) -> None:
            heads = [CopyHead(R0, step, len(mine), "a"), CopyHead(R1, step, len(yours), "b")]
            taken: dict[int, CopyHead | None] = {}
            raised = both(
                lambda: taken.update({0: first.swap(step, heads[0], memoryview(mine), room_for(kept[0]))}),
                lambda: taken.update({1: second.swap(step, heads[1], memoryview(yours), room_for(kept[1]))}),
            )
            assert raised == [None, None]
            assert taken == {0: heads[1], 1: heads[0]}

        swap(5)
        swap(6)
        assert first.busy_s() > 0
    assert kept == {0: [yours, yours], 1: [mine, mine]}


def test_a_rank_that_has_no_copy_sends_none() -> None:
    with ring() as (first, second):
        found: list[CopyHead | None] = []
        kept: list[bytearray] = []
        head = CopyHead(R0, 4, 3)
        assert both(
            lambda: found.append(second.swap(4, None, memoryview(b""), room_for(kept))),
            lambda: found.append(first.swap(4, head, memoryview(b"abc"), room_for(kept))),
        ) == [None, None]
        assert sorted(found, key=str) == [head, None]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (CopyHead(R7, 4, 3), "a copy of rank 7's state of step 4"),
        (CopyHead(R0, 4, 3), "a copy of rank 0's state of step 4"),
        (CopyHead(R1, 3, 3), "a copy of rank 1's state of step 3"),
    ],
)
def test_another_ranks_or_an_older_copy_is_refused(head: CopyHead, why: str) -> None:
    with ring() as (first, second):
        kept: list[bytearray] = []
        raised = both(
            lambda: first.swap(4, None, memoryview(b""), room_for(kept)),
            lambda: second.swap(4, head, memoryview(b"abc"), room_for([])),
        )
        assert isinstance(raised[0], CopyError)
        assert why in str(raised[0])
        assert kept == []


JUNK = [
    b"",
    b"\xff" * 40,
    msgspec.msgpack.encode({"of": -1, "step": 4, "size_bytes": 3}),
    msgspec.msgpack.encode({"of": 1, "step": -4, "size_bytes": 3}),
    msgspec.msgpack.encode({"of": 1, "step": 4, "size_bytes": -3}),
    msgspec.msgpack.encode({"of": 1, "step": 4, "size_bytes": 1 << 60}),
    msgspec.msgpack.encode({"of": 1, "step": 4, "size_bytes": 3, "digest": "x" * 5000}),
    msgspec.msgpack.encode({"of": 1, "step": "four", "size_bytes": 3}),
    msgspec.msgpack.encode([1, 4, 3]),
    msgspec.msgpack.encode({"of": 1, "step": 4, "size_bytes": 3, "digest": "abc"}).replace(b"abc", b"\xff\xfe\xfd"),
    b"\x81\xa1a" + b"\x91" * 100_000,
    msgspec.msgpack.encode({"of": 1, "step": 4}) + b"\0",
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_in_place_of_a_head_is_one_error(junk: bytes) -> None:
    with ring() as (first, second):
        assert second._link.send(junk)
        with pytest.raises(CopyError, match="rank 1 has sent no head of a copy"):
            first.swap(4, None, memoryview(b""), room_for([]))


@pytest.mark.parametrize("frame", [b"", b"ab", b"abcd", bytes(FRAME_BYTES)])
def test_a_frame_of_another_length_is_refused(frame: bytes) -> None:
    with ring() as (first, second):
        assert second._link.send(msgspec.msgpack.encode(CopyHead(R1, 4, 3)))
        assert second._link.send(frame)
        with pytest.raises(CopyError, match=f"a frame of a copy has {len(frame)} bytes, expected 3"):
            first.swap(4, None, memoryview(b""), room_for([]))


def test_a_frame_that_is_lost_is_noticed() -> None:
    with ring() as (first, second):
        second._link._sent += 1
        assert second._link.send(b"x")
        with pytest.raises(LinkError, match="did not come whole"):
            first.swap(4, None, memoryview(b""), room_for([]))


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        (peers_key(b"somebody else's, 0123456789abcdef", "default"), Ends(WORLD, R1, R0, R0)),
        (peers_key(b"for these tests alone, 0123456789", "another job"), Ends(WORLD, R1, R0, R0)),
        (KEY, Ends("taskd/abc/2 1", R1, R0, R0)),
        (KEY, Ends("taskd/abc/3 2", R1, R0, R0)),
        (KEY, Ends(WORLD, R7, R0, R0)),
    ],
    ids=["another secret", "another job", "an older generation", "another function", "another rank"],
)
def test_only_the_ward_of_this_world_gets_in(key: str, ends: Ends) -> None:
    over, found = threading.Event(), list[BaseException]()
    with waiting(over.is_set, found) as address:
        with contextlib.closing(PeerLink(key, ends, LOOPBACK)) as stranger:
            assert not linked(stranger, address, limit_s=0.6)
        with contextlib.closing(PeerLink(KEY, Ends(WORLD, R1, R0, R0), LOOPBACK)) as ward:
            assert linked(ward, address), "and the ward does all the same"
        over.set()
    assert [str(error) for error in found] == ["told to stop"]


@pytest.mark.timed
def test_silent_connections_hold_nobody_up() -> None:
    over, found = threading.Event(), list[BaseException]()
    with waiting(over.is_set, found) as address, contextlib.ExitStack() as held:
        for _ in range(SILENT):
            held.enter_context(socket.create_connection((address.host, address.port), LIMIT_S))
        with contextlib.closing(PeerLink(KEY, Ends(WORLD, R1, R0, R0), LOOPBACK)) as ward:
            begun_s = time.monotonic()
            assert linked(ward, address)
            assert time.monotonic() - begun_s < 2.0
        begun_s = time.monotonic()
        over.set()
    assert time.monotonic() - begun_s < 2.0, "its end comes among them as well"


def test_a_flood_of_visits_is_few_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers._Port, "_told", set())
    over, found = threading.Event(), list[BaseException]()
    with caplog.at_level(logging.INFO), waiting(over.is_set, found) as address:
        for number in range(600):
            with socket.create_connection((address.host, address.port), LIMIT_S) as link, contextlib.suppress(OSError):
                link.sendall(b"\xff" * number)
        with contextlib.closing(PeerLink(KEY, Ends(WORLD, R1, R0, R0), LOOPBACK)) as ward:
            assert linked(ward, address)
        over.set()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("refused a connection to port ")


NAMES = ["localhost:80", "silent.example:80", "127.1:80", "0x7f000001:80", "[fe80::1%a;silent.example]:80"]
"""Addresses that a resolver would look up, for as long as it takes."""


@pytest.mark.parametrize("said", ["", "nonsense", "\xff\xfe:1", "[::1:80", "*:80", "a:99999", "9" * 5000, *NAMES])
def test_what_is_no_address_in_the_store_is_refused(said: str) -> None:
    store = HashStore()
    store.set("address/1", said)
    with pytest.raises(CopyError, match="the store names no address of rank 1"):
        Exchange(store, LOOPBACK, WORLD, R0, Neighbours(R1, R1), KEY, lambda: False, asked)


@pytest.mark.parametrize("host", ["10.0.0.7", "::1", "fd00::7", "fe80::7%eth0.1"])
def test_the_address_that_a_rank_publishes_is_taken(host: str) -> None:
    address = Address(host, 80)
    assert exchange._address(str(address).encode(), R1) == address


def test_who_listens_in_the_buddys_place_gets_nothing() -> None:
    """A peer that can write to the store may name its own address: it receives no byte of the state."""
    with socket.create_server((LOOPBACK, 0)) as server:
        store, over, got = HashStore(), threading.Event(), bytearray()
        store.set("address/1", f"{LOOPBACK}:{server.getsockname()[1]}")

        def listen() -> None:
            link, _ = server.accept()
            link.settimeout(1.0)
            with link, contextlib.suppress(OSError):
                link.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x01" + bytes(31))
                while data := link.recv(4096):
                    got.extend(data)
            over.set()

        raised = both(
            listen,
            lambda: Exchange(store, LOOPBACK, WORLD, R0, Neighbours(R1, R1), KEY, over.is_set, asked),
        )
    assert isinstance(raised[1], CopyError)
    assert len(got) < 512, "a greeting, and the hello of CURVE"
    assert exchange._HELLO not in got


def test_its_threads_are_not_taken_for_the_scripts() -> None:
    """A check for hangs must not assume that a message could still wake the rank."""
    before = set(os.listdir("/proc/self/task"))
    with ring():
        limit_s = time.monotonic() + LIMIT_S
        while taken := _taken() - before:  # a thread of ZeroMQ names itself after its start
            assert time.monotonic() < limit_s, {thread: _name(thread) for thread in taken}
            time.sleep(0.01)
        new = set(os.listdir("/proc/self/task")) - before
        assert any(_name(thread).startswith(ZEROMQ_NAMES) for thread in new)


def _taken() -> set[str]:
    """Return the threads of this process that count as the script's."""
    seen = look(os.getpid())
    assert seen is not None
    return {str(thread) for thread in seen.runs}


def _name(thread: str) -> str:
    return Path(f"/proc/self/task/{thread}/comm").read_text().strip()


@pytest.mark.timed
def test_an_exchange_that_is_to_end_ends_at_once() -> None:
    over = threading.Event()
    with ring(stopped=over.is_set) as (first, _):
        threading.Timer(0.2, over.set).start()
        begun_s = time.monotonic()
        with pytest.raises(CopyError, match="told to stop"):
            first.swap(4, None, memoryview(b""), room_for([]))
        assert time.monotonic() - begun_s < 2.0


def test_too_few_descriptors_are_an_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 8, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            PeerLink(KEY, Ends(WORLD, R0, R1, R1), LOOPBACK)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _receive(here: Exchange, incoming: Incoming, heads: list[CopyHead | None]) -> None:
    heads.append(here.swap(4, None, memoryview(b""), incoming.room))


def test_a_copy_without_room_is_read_and_dropped(tmp_path: Path) -> None:
    """Its sender is not delayed, and learns with all others that there are no copies any more."""
    paths = [tmp_path / f"copy-{number}" for number in range(4)]
    content = os.urandom((2 << 20) + 5)
    head = CopyHead(R1, 4, len(content), "d")
    heads: list[CopyHead | None] = []
    with ring() as (here, there):
        for ranks, missing in ((1 << 40, "copies on this node grow by"), (1, "")):
            folder = CopyFolder(paths, R0, ranks)
            incoming = Incoming(folder, -1)
            heads.clear()
            raised = both(
                partial(_receive, here, incoming, heads),
                lambda: there.swap(4, head, memoryview(content), room_for([])),
            )
            assert (raised, heads) == ([None, None], [head])
            assert incoming.missing.startswith(missing)
            assert (incoming.file is None) is bool(missing)
            if incoming.file is not None:
                assert incoming.file.bytes(len(content)) == content
            folder.close()
