"""Attacks on copies that go from node to node, and on the memory that holds them."""

import os
import random
import re
import signal
import socket
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch.distributed import TCPStore

from taskd.adaptors.training.copies.copy_file import HEAD_BYTES, CopyFile
from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.identity import peers_key
from taskd.runtime.links.peers import Ends, PeerLink
from tests.attacks.job import (
    PROGRAM,
    RANKS,
    SECRET,
    VICTIM,
    WRONG_SECRET,
    AttackedJob,
    digests_of_plain,
    end_all,
)
from tests.attacks.model import MARK
from tests.e2e.job import Process
from tests.launch import Launcher, free_port

COPIED: Final = PROGRAM.with_name("copied.py")
_NETWORK, _MEMORY, _USER = "the network", "memory that fails", "nobody"
SILENT, VISITS, KILLS = 120, 3_000, 3
MOST_TIMES, SLACK_MS = 2.0, 1_000
"""Limit of a recovery among silent connections: `MOST_TIMES` the time of one without, and `SLACK_MS` more."""
REFUSED = "refused a connection to port"
_SNIFFED_S = 2.0
_MOST_ANSWERED = 1000
_ETH_P_ALL = 3
_ETHERNET_BYTES = 14
_LEAST_SEEN_BYTES = 100_000


class CopiedJob(AttackedJob):
    """A job of two torchruns, one for each node, and a manager."""

    def __init__(self, launcher: Launcher, folder: Path, mark: str) -> None:
        super().__init__(launcher, folder, mark)
        self.store_port = free_port()
        self.torchruns: list[Process] = []
        self.secret: str | None = SECRET

    def start_manager(self, *, secret: str | None = SECRET) -> None:
        """Start a manager for two nodes."""
        sizes = ["--nodes", RANKS, "--procs-per-node", 1, "--host", LOOPBACK]
        env = {**self.environment(), **self._secrets(), "TASKD_MANAGER_PORT": str(self.address.port)}
        self.manager = self.launcher.start(["python", "-m", "taskd", "manager", *map(str, sizes)], env=env)

    def begin(self, victim: int = VICTIM, restarts: int = 30) -> None:
        """Start training on both nodes."""
        self.ranks = 1
        where = [f"--nnodes={RANKS}", f"--master-addr={LOOPBACK}", f"--master-port={self.store_port}"]
        where += [f"--max_restarts={restarts}", "--monitor-interval=0.1"]
        for node in range(RANKS):
            command = [f"--node-rank={node}", *where, str(COPIED), str(self.folder), str(victim)]
            self.launch(command, env=self._secrets())
            self.torchruns.append(self.process)

    def end(self, limit_s: float = 90.0) -> int:
        """Wait for both torchruns. Return the greater exit status."""
        statuses = []
        for torchrun in self.torchruns:
            self.watch(torchrun)
            statuses.append(super().end(limit_s))
        return max(statuses)

    @property
    def output(self) -> str:
        """Output of both torchruns."""
        return "".join(map(self.launcher.output, self.torchruns))

    @property
    def pids(self) -> dict[int, int]:
        """Process of each rank. Each node reports its own."""
        return {int(rank): pid for event in self.named("processes") for rank, pid in event["pids"].items()}

    def ports(self) -> list[int]:
        """Return the ports at which ranks listen."""
        return sorted({port for pid in self.pids.values() for port in ports_of(pid)})

    def copies(self) -> list[Path]:
        """Return the memory of agents that holds copies, by its paths in /proc."""
        return [path for torchrun in self.torchruns for _, path in copies_at(torchrun.pid)]

    def await_copies(self) -> None:
        """Wait until each rank keeps its own state and its ward's."""
        self.wait(lambda: len(self.copies()) >= 4 * RANKS, "copies of both ranks on both nodes")

    def _secrets(self) -> dict[str, str | None]:
        return {"TASKD_SECRET": self.secret, "TASKD_INSECURE": None if self.secret else "on"}


@dataclass(frozen=True)
class Between:
    """One attack on copies.

    Attributes:
        log: a line that each rank writes at most once, as a regular expression.
        lines: smallest and largest number of such lines.
        in_place: the rank that is killed later is replaced, and the other one goes on; else all start anew.
    """

    name: str
    by: str
    strike: Callable[[CopiedJob], None]
    log: str = ""
    lines: tuple[int, int] = (1, RANKS)
    secret: str | None = SECRET
    in_place: bool = True


def ports_of(pid: int) -> list[int]:
    """Return the ports at which this process listens."""
    with suppress(OSError):
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        found = [one for one in lines if one[3] == "0A" and f"socket:[{one[9]}]" in links]
        return [int(one[1].rpartition(":")[2], 16) for one in found]
    return []


def listen_on_the_wire(job: CopiedJob) -> None:
    """Record all packets between the nodes while copies are sent in every step."""
    ports, seen = set(job.ports()), bytearray()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as wire:
        wire.bind(("lo", 0))
        wire.settimeout(1.0)
        end_s = time.monotonic() + _SNIFFED_S
        while time.monotonic() < end_s:
            with suppress(TimeoutError):
                packet = wire.recv(1 << 17)
                at = _ETHERNET_BYTES + 4 * (packet[_ETHERNET_BYTES] & 15)
                ends = {int.from_bytes(packet[at : at + 2], "big"), int.from_bytes(packet[at + 2 : at + 4], "big")}
                if ends & ports:  # other processes use this machine too
                    seen += packet
    job.found["seen_mb"] = round(len(seen) / 1e6, 1)
    assert len(seen) > _LEAST_SEEN_BYTES, "no copy came by"
    assert MARK not in seen, "the state was read"


def read_and_replace(job: CopiedJob) -> None:
    """Act as a process that can read the store and all ports: request the state, and send a forged one."""
    store = TCPStore(LOOPBACK, job.store_port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
    keys = store.list_keys() if hasattr(store, "list_keys") else []
    job.found["keys"] = len(keys)
    worlds = sorted({key.lstrip("/").rpartition("/copies/")[0] for key in keys if "/copies/" in key} | {"taskd/0"})
    forged = MARK[::-1] * 100
    for port in job.ports():
        for words in (b"", os.urandom(16), b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47), forged):
            with socket.create_connection((LOOPBACK, port), 2.0) as link, suppress(OSError):
                link.settimeout(0.3)
                link.sendall(words + forged)
                got = 0
                while (data := link.recv(4096)) and got < _MOST_ANSWERED:
                    got += len(data)
                assert got < _MOST_ANSWERED, "a stranger was answered at length"
    for world in worlds:
        for ward, own in ((0, 1), (1, 0)):
            pretend(job, world, ward, own)


def pretend(job: CopiedJob, world: str, ward: int, own: int) -> None:
    """Connect as that rank, with another secret."""
    key = peers_key(WRONG_SECRET.encode(), "default")
    link = PeerLink(key, Ends(f"{world} 1", ward, own, own), LOOPBACK)
    try:
        for port in job.ports():
            link.connect(Address(LOOPBACK, port))
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            link.wait(reads=True, writes=True, limit_s=0.05)
            assert not link.send(b"x"), "a stranger was let in"
            assert link.receive() is None
    finally:
        link.close()


@contextmanager
def silent_ones(job: CopiedJob) -> Iterator[list[int]]:
    """Open many connections that send nothing at each port of a rank, as soon as it is there."""
    over, held, met = threading.Event(), list[socket.socket](), list[int]()

    def run() -> None:
        while not over.wait(0.002):
            for port in {port for pid in rank_pids(job) for port in ports_of(pid)} - set(met):
                met.append(port)
                for _ in range(SILENT):
                    with suppress(OSError):
                        held.append(socket.create_connection((LOOPBACK, port), 1.0))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield met
    finally:
        over.set()
        thread.join()
        for one in held:
            one.close()


def rank_pids(job: CopiedJob) -> list[int]:
    """Return the pids of all children of both torchruns, including standbys."""
    found: list[int] = []
    for torchrun in job.torchruns:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split())
    return found


def recover_among_silent_ones(job: CopiedJob) -> None:
    """Kill a rank some times before the connections are opened, and as often while they are open."""
    job.recovers_ms()  # the first one is slower
    calm = sorted(recovers_ms(job) for _ in range(KILLS))
    with silent_ones(job) as met:
        among = sorted(recovers_ms(job) for _ in range(KILLS))
        job.await_copies()
        job.found["ports"] = len(met)
    job.found |= {"undisturbed_ms": calm, "disturbed_ms": among}
    limit_ms = MOST_TIMES * statistics.median(calm) + SLACK_MS
    assert statistics.median(among) <= limit_ms, f"{among} ms among them, {calm} ms without"
    assert met, "no port was met"


def recovers_ms(job: CopiedJob) -> int:
    """Measure a recovery after a step that has been copied."""
    job.await_copies()
    return job.recovers_ms()


def visit(job: CopiedJob) -> None:
    """Make 3,000 connections, each with junk in place of a head."""
    chance = random.Random(5)
    ports = job.ports()
    assert ports, "no rank listens"
    for number in range(VISITS):
        with socket.create_connection((LOOPBACK, ports[number % len(ports)]), 2.0) as link, suppress(OSError):
            link.sendall(chance.randbytes(chance.randrange(1, 300)))


def flip_bits(job: CopiedJob) -> None:
    """Flip one bit in the head of each copy of the victim's own state on its node. A rank is killed afterwards."""
    chance = random.Random(3)
    stop_copying(job)
    for path in own_copies(job):
        file = CopyFile(path)
        head = file.head()
        if head is not None:
            size = int.from_bytes(file.bytes(head.size_bytes)[:8], "little")
            file.bytes(head.size_bytes)[chance.randrange(32, 32 + size)] ^= 1 << chance.randrange(8)


def put_another_ranks(job: CopiedJob) -> None:
    """Put the other rank's copies in place of the victim's own."""
    stop_copying(job)
    theirs = [path for pair, path in copies_at(job.torchruns[VICTIM].pid) if pair == 1]
    for path, source in zip(own_copies(job), theirs, strict=True):
        with path.open("r+b") as into, source.open("rb") as out:
            into.write(out.read(HEAD_BYTES + (1 << 20)))


def stop_copying(job: CopiedJob) -> None:
    """Stop the victim, which is killed after the attack. No state is copied meanwhile."""
    job.await_copies()
    os.kill(job.pids[VICTIM], signal.SIGSTOP)


def own_copies(job: CopiedJob) -> list[Path]:
    """Return the copies of the victim's own state on its node."""
    return [path for pair, path in copies_at(job.torchruns[VICTIM].pid) if pair == 0]


def copies_at(pid: int) -> list[tuple[int, Path]]:
    """Return the copies that an agent holds for its one rank, each with its pair number: 0 for the rank's own state."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            name = re.match(r"/memfd:taskd-copy-0-(\d)", os.readlink(link))
            if name is not None and link.stat().st_blocks:
                found.append((int(name[1]) // 2, link))
    return sorted(found)


def kill_the_victim(job: CopiedJob, strike: Callable[[CopiedJob], None]) -> None:
    """Attack the victim's copies, and kill it. It then needs one of them."""
    done = len(job.named("recovered"))
    strike(job)
    job.kills += 1
    os.kill(job.pids[VICTIM], signal.SIGKILL)
    job.recovered(done + 1)


def stay_at_home(job: CopiedJob) -> None:
    """Check that copies stay on their own nodes: without a secret, no rank listens for copies."""
    job.wait(lambda: len(job.copies()) >= 2 * RANKS, "copies of both ranks on their own nodes")
    assert len(job.copies()) == 2 * RANKS, "copies have gone to another node"


BETWEEN = (
    Between("a stranger on the wire between nodes", _NETWORK, listen_on_the_wire),
    Between("a stranger at the copies' ports", _NETWORK, read_and_replace, log=REFUSED),
    Between("120 silent connections to copies' ports", _NETWORK, recover_among_silent_ones),
    Between("3,000 visits with junk for a copy", _NETWORK, visit, log=REFUSED),
    Between("bits flip in copies' manifests", _MEMORY, lambda job: kill_the_victim(job, flip_bits)),
    Between("another rank's copies in place", _MEMORY, lambda job: kill_the_victim(job, put_another_ranks)),
    Between(
        "copies without a secret", _USER, stay_at_home, secret=None, lines=(1, 1),
        log="no copy of a rank's state goes to another node",
    ),
)  # fmt: skip


def undisturbed_copied(folder: Path) -> set[str]:
    """Return the digests of the same training under plain torchrun."""
    folder.mkdir()
    mark = uuid.uuid4().hex
    return digests_of_plain(CopiedJob(Launcher(folder, mark), folder, mark))


def perform_between(attack: Between, folder: Path, wanted: set[str]) -> tuple[AttackedJob, list[str]]:
    """Attack a job of two nodes. Return the job after its end, and the defects."""
    mark = uuid.uuid4().hex
    launcher = Launcher(folder, mark)
    job = CopiedJob(launcher, folder, mark)
    job.secret = attack.secret
    wrong: list[str] = []
    try:
        job.start_manager()
        job.begin()
        job.await_training(warm=True)
        if attack.secret is not None:
            job.await_copies()
        attack.strike(job)
        job.struck()
        wrong = judge(attack, job, job.end(), wanted)
    except (AssertionError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"[:2000]]
    finally:
        job.also.close()
        (folder / "log").write_text(job.log if job.has_begun else "")
        end_all(launcher, folder)
    return job, wrong


def judge(attack: Between, job: CopiedJob, status: int, wanted: set[str]) -> list[str]:
    """Return the defects of the job; an empty list if there are none."""
    wrong = [f"exit status {status}"] if status else []
    if job.digests != wanted:
        wrong.append(f"parts {sorted(job.digests)}, expected {sorted(wanted)}")
    records: list[dict[str, Any]] = job.named("recovered")
    strategies = [record["strategy"] for record in records]
    if strategies != ["recover-in-place"] * (1 + job.kills):
        wrong.append(f"recoveries {strategies}, expected {1 + job.kills} in place")
    told = [line for line in job.log.splitlines() if attack.log and re.search(attack.log, line)]
    if attack.log and not attack.lines[0] <= len(told) <= attack.lines[1]:
        wrong.append(f"{len(told)} lines of the attack, expected {attack.lines} that match {attack.log!r}")
    if "Traceback (most recent" in job.log:
        wrong.append("a traceback is in the log")
    return wrong
