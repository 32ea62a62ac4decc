"""Who comes in at the door of a rank's agent, and whom a process believes that knocks there."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from taskd.adaptors.actors import door as doors
from taskd.adaptors.actors.door import Door, Entrance, _address, answer, knock
from taskd.errors import LinkError

LIMIT_S = 20.0
KNOCK = """
import sys
from taskd.adaptors.actors.door import Entrance, knock
found = knock(Entrance(tuple(sys.argv[2:]), bytes.fromhex(sys.argv[1])))
print(found and found[1], flush=True)
"""
LISTEN = """
import socket, sys
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.bind(chr(0) + sys.argv[1])
end.listen(8)
print("listens", flush=True)
while True:
    link, _ = end.accept()
    print("somebody came", flush=True)
    said = link.recv(100)
    print("said", len(said), flush=True)
    if said:
        link.send(b"x" * 64)
"""
GREET = """
import socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(chr(0) + sys.argv[1])
try:
    link.send(bytes(32))
    print("heard", len(link.recv(100)))
except ConnectionError:
    print("heard 0")
"""
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")


@pytest.fixture
def entrance() -> Entrance:
    return Entrance(tuple(f"test-{os.getpid()}-{os.urandom(4).hex()}-{number}" for number in range(3)), os.urandom(32))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Serving:
    """A door in a thread that gives everybody the same variables."""

    def __init__(self, entrance: Entrance, env: dict[str, str]) -> None:
        self.door, self.env = Door(entrance), env
        self.pids: list[int] = []
        self._wake = os.eventfd(0)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self.door, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while self._wake not in [descriptor for descriptor, _ in poller.poll()]:
            for visitor in self.door.let_in():
                self.pids.append(visitor.pid)
                assert visitor.tell(self.env)
                visitor.link.close()

    def __enter__(self) -> "Serving":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self.door.close()
        os.close(self._wake)


def squat(name: str, opened: ExitStack, *, as_other: bool) -> "subprocess.Popen[str]":
    """Somebody takes this name, and answers whoever comes."""
    command = [*(AS_NOBODY if as_other else ()), sys.executable, "-c", LISTEN, _address(name)[1:]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
    opened.callback(process.wait)
    opened.callback(process.kill)
    assert process.stdout is not None
    opened.callback(process.stdout.close)
    assert process.stdout.readline() == "listens\n"
    return process


def first_seen(process: "subprocess.Popen[str]") -> list[str]:
    """What the squatter has seen of who came first."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(2)]


def test_nobody_is_behind_a_door_that_is_not_there(entrance: Entrance) -> None:
    assert knock(entrance) is None


def test_who_holds_the_key_is_let_in(entrance: Entrance) -> None:
    with Serving(entrance, {"RANK": "1"}) as serving:
        words = [sys.executable, "-c", KNOCK, entrance.key.hex(), *entrance.names]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as visitor:
            said, _ = visitor.communicate(timeout=LIMIT_S)
        assert said == "{'RANK': '1'}\n"
        assert serving.pids == [visitor.pid]


def test_a_rank_has_one_agent_on_a_machine(entrance: Entrance) -> None:
    with Serving(entrance, {}), pytest.raises(LinkError, match="runs on this machine already"):
        Door(entrance)


def test_who_has_no_key_is_neither_let_in_nor_believed(entrance: Entrance, caplog: pytest.LogCaptureFixture) -> None:
    with Serving(entrance, {"RANK": "1"}) as serving:
        assert knock(Entrance(entrance.names, os.urandom(32))) is None
        assert serving.pids == []
    assert "without its key; passed over" in caplog.text


def greeted(link: socket.socket) -> bytes:
    link.sendall(bytes(32))
    return link.recv(1000)


@pytest.mark.parametrize(
    "say",
    [
        lambda link: link.sendall(b"x"),
        lambda link: link.sendall(b"x" * 1000),
        lambda link: (greeted(link), link.sendall(b"x" * 32)),
        lambda link: link.sendall(greeted(link)[32:]),  # the agent's own proof
        lambda link: link.sendall(b""),
    ],
)
def test_what_is_no_proof_opens_nothing(entrance: Entrance, say: Callable[[socket.socket], object]) -> None:
    with Serving(entrance, {"RANK": "1"}) as serving:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(LIMIT_S)
            link.connect(_address(entrance.names[0]))
            say(link)
            link.shutdown(socket.SHUT_WR)
            while frame := link.recv(1000):
                assert len(frame) == 64, "the agent has answered"
        assert serving.pids == []


def test_silent_visitors_hold_nobody_up(entrance: Entrance, opened: ExitStack) -> None:
    with Serving(entrance, {"RANK": "1"}):
        for _ in range(100):
            link = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            link.connect(_address(entrance.names[0]))
        found = knock(entrance)
    assert found is not None
    assert found[1] == {"RANK": "1"}
    found[0].close()


def test_a_full_door_sends_the_oldest_away_and_stays_open(
    entrance: Entrance, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """One look finds the oldest of 64 silent ones with a word, and somebody new."""
    door = Door(entrance)
    opened.callback(door.close)
    links = [opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(66)]
    for link in links[:64]:
        link.connect(_address(entrance.names[0]))
        assert door.let_in() == []
    links[64].connect(_address(entrance.names[0]))
    links[0].sendall(b"x")
    assert door.let_in() == []
    assert links[0].recv(1) == b"", "it was heard first, and refused"
    assert "does not hold its job's key" in caplog.text
    links[65].connect(_address(entrance.names[0]))
    links[1].sendall(bytes(32))
    assert door.let_in() == []
    assert len(links[1].recv(100)) == 64, "it was answered before it was sent away"
    assert links[1].recv(1) == b"", "the oldest makes room"
    links[2].sendall(bytes(32))
    assert door.let_in() == []
    assert len(links[2].recv(100)) == 64, "the others still wait"


def silent(entrance: Entrance, opened: ExitStack, count: int) -> None:
    """Somebody of this user listens at so many names, and never says a word."""
    for name in entrance.names[:count]:
        end = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        end.bind(_address(name))
        end.listen(8)


@pytest.mark.timed
def test_silent_strangers_cost_nothing_where_the_agent_answers(entrance: Entrance, opened: ExitStack) -> None:
    with Serving(entrance, {"RANK": "1"}) as serving:
        silent(Entrance(entrance.names[1:], entrance.key), opened, 2)
        begun_s = time.monotonic()
        found = knock(Entrance(entrance.names[::-1], entrance.key))
        assert time.monotonic() - begun_s < 2.0
        assert found is not None
        assert found[1] == {"RANK": "1"}
        found[0].close()
        assert serving.pids == [os.getpid()]


@pytest.mark.timed
def test_silent_strangers_cost_one_wait_together(
    entrance: Entrance, opened: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "_PROOF_S", 0.5)
    silent(entrance, opened, 3)
    begun_s = time.monotonic()
    assert knock(entrance) is None
    assert 0.5 <= time.monotonic() - begun_s < 1.5
    assert caplog.text.count(f"process {os.getpid()} listens at a name of this rank's agent, and is silent") == 3


@pytest.mark.timed
def test_a_knock_ends_when_its_time_is_over(entrance: Entrance, opened: ExitStack) -> None:
    """Whether nobody proves anything, or one that has gives no answer."""
    silent(entrance, opened, 1)
    begun_s = time.monotonic()
    assert knock(entrance, begun_s + 0.3) is None
    assert 0.3 <= time.monotonic() - begun_s < 2.0
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        begun_s = time.monotonic()
        with pytest.raises(TimeoutError):
            answer(far, begun_s + 0.3)
        assert 0.3 <= time.monotonic() - begun_s < 2.0


@needs_root
def test_another_user_is_told_nothing(entrance: Entrance, opened: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """It holds the first name, as one that waited for the agent's death; the agent is at the next."""
    stranger = squat(entrance.names[0], opened, as_other=True)
    assert knock(entrance) is None
    with Serving(entrance, {"RANK": "1"}) as serving:
        found = knock(entrance)
        assert found is not None
        assert found[1] == {"RANK": "1"}
        found[0].close()
        assert serving.pids == [os.getpid()]
        with pytest.raises(LinkError, match="runs on this machine already"):
            Door(entrance)
    assert first_seen(stranger) == ["somebody came", "said 0"]
    assert "user 65534 is at the other end" in caplog.text


@needs_root
@pytest.mark.parametrize(("who", "heard"), [(AS_NOBODY, "heard 0"), ((), "heard 64")], ids=["another", "own"])
def test_another_user_is_not_answered(entrance: Entrance, who: tuple[str, ...], heard: str) -> None:
    with Serving(entrance, {"RANK": "1"}):
        words = [*who, sys.executable, "-c", GREET, _address(entrance.names[0])[1:]]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/")
        assert ran.stdout.strip() == heard, ran.stderr


def test_all_names_taken_are_named(entrance: Entrance, opened: ExitStack) -> None:
    for name in entrance.names:
        end = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        end.bind(_address(name))
    with pytest.raises(LinkError, match=r"all 3 names .* are taken"):
        Door(entrance)


def test_an_answer_may_hold_what_is_no_utf8() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        near.sendall(json.dumps({"OLDPWD": "/\udcff"}).encode())
        assert answer(far) == {"OLDPWD": "/\udcff"}
