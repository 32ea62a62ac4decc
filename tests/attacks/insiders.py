"""Attacks with the job's secret: by a node of the job that misbehaves, or by a thief of the secret."""

import math
import random
from functools import partial
from typing import Any

import msgspec
from msgspec import inspect

from taskd.wire import codec, messages
from taskd.wire.checks import Inspect
from tests.attacks.job import Attack, AttackedJob
from tests.attacks.peers import STATUS, insider, says
from tests.fuzz.shapes import anything, changed

EVIDENCE_REPORT: dict[str, Any] = msgspec.to_builtins(
    messages.EvidenceReport(job_id="default", agent_id=STATUS["agent_id"], probe=0, evidence={}, proof=STATUS["proof"])
)
DRAIN: dict[str, Any] = msgspec.to_builtins(messages.Drain(job_id="default", node="1"))
RANK = {"rank": 0, "incarnation": 0, "generation": 0, "stage": "training"}
KINDS = (messages.NodeStatus, messages.EvidenceReport, messages.Drain, messages.Modules, Inspect)
REFUSED = r"refused a frame from \S*127\.0\.0\.1"


def one(name: str, *values: Any, log: str = REFUSED) -> Attack:
    """Return an attack that sends these messages from a peer with the secret."""
    return Attack(name, "a node of the job", partial(says, values=values), log=log)


def flood(job: AttackedJob) -> None:
    """Send 100,000 messages that are refused. Memory and log do not grow."""
    assert job.manager is not None
    with insider(job) as peer:
        for _ in range(1000):
            peer.send({**DRAIN, "node": 7})
        peer.settle()
        before_mb = resident_mb(job.manager.pid)
        for _ in range(100):
            for _ in range(1000):
                peer.send({**DRAIN, "node": 7})
            peer.settle()
        grown_mb = resident_mb(job.manager.pid) - before_mb
    assert grown_mb < 4, f"the manager grew by {grown_mb:.1f} MB"


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    with open(f"/proc/{pid}/status") as file:
        (line,) = (line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def every_edge(job: AttackedJob) -> None:
    """Send each field of each message with the edges of its type, and with values of other types."""
    with insider(job) as peer:
        for kind, value in (
            (messages.NodeStatus, STATUS),
            (messages.EvidenceReport, EVIDENCE_REPORT),
            (messages.Drain, DRAIN),
        ):
            for _, variant in changed(inspect.type_info(kind), value):
                drains = isinstance(variant, dict) and variant.get("type") == DRAIN["type"]
                if drains and variant.get("job_id") == "default":
                    continue  # a drain of this job is granted
                if len(msgspec.msgpack.encode(variant)) < codec.MAX_FRAME_BYTES:
                    peer.send(variant)
            peer.settle()


def random_messages(job: AttackedJob) -> None:
    """Send 10,000 random messages of the right types."""
    chance = random.Random(14)
    infos = [inspect.type_info(kind) for kind in KINDS]
    with insider(job) as peer:
        for number in range(10_000):
            value = anything(chance.choice(infos), chance)
            if isinstance(value, dict) and value.get("job_id") != "default":
                peer.send(value)
            if number % 500 == 0:
                peer.settle()
        peer.settle()


def modules_of_two(job: AttackedJob) -> None:
    """Act as two nodes whose modules fit one message each, but not one message together."""
    for side in "ab":
        names = tuple(f"{side}{number:05d}.{'x' * 80}" for number in range(4000))
        says(job, [{"type": "Modules", "names": names[:2000]}, {"type": "Modules", "names": names[2000:]}])


def imports_for_spares(job: AttackedJob) -> None:
    """Name modules as a peer without a place. A node that waits for a place receives none of them."""
    with insider(job) as spare, insider(job) as stranger:
        spare.send(STATUS)
        stranger.send({"type": "Modules", "names": ["antigravity", "program", "idlelib.idle"]})
        stranger.settle()
        spare.send({**STATUS, "sequence": 2})
        heard = spare.heard(1.0)
    assert heard, "the manager does not answer the spare"
    named = {name for message in heard if isinstance(message, messages.Modules) for name in message.names}
    assert not named & {"antigravity", "program", "idlelib.idle"}, "a stranger's modules were passed on"


def another_version(job: AttackedJob) -> None:
    """Act as a taskd of another build with the job's secret. It receives the manager's version, and nothing else."""
    with insider(job) as peer:
        for _ in range(3):
            peer.send_frame(codec.MAGIC + bytes([codec.WIRE_VERSION + 1]) + msgspec.msgpack.encode(STATUS))
            assert peer.frame() == codec.HEADER


def forged(job: AttackedJob) -> None:
    """Report under the name of the training node that it leaves, and that its ranks are dead."""
    (node,) = {event["agent_id"] for event in job.events if "agent_id" in event} or {"0123456789abcdef"}
    dead = [{**RANK, "rank": rank, "stage": "dead", "cause": "signal 9 (SIGKILL)"} for rank in (0, 1)]
    report = {**STATUS, "agent_id": node, "node_rank": 0, "ranks": dead, "leaving": True, "sequence": 2**40}
    says(job, [report])


def garbage(job: AttackedJob) -> None:
    """Send invalid frames: noise, other versions, deep nesting, excessive size."""
    chance = random.Random(7)
    header = codec.MAGIC + bytes([codec.WIRE_VERSION])
    with insider(job) as peer:
        for length in (0, 1, 3, 4, 100, 10_000):
            peer.send_frame(chance.randbytes(length))
        peer.send_frame(codec.MAGIC + b"\xfe" + msgspec.msgpack.encode(STATUS))
        peer.send_frame(header + b"\x91" * 100_000)
        peer.send_frame(header + b"\xdf\xff\xff\xff\xff")
        peer.send_frame(header + bytes(codec.MAX_FRAME_BYTES))
        peer.settle()


INSIDERS = (
    one("an age that is no number", {**STATUS, "progress": [1, math.nan]}),
    one("an infinite age", {**STATUS, "progress": [1, math.inf]}),
    one("a store of 300 characters", {**STATUS, "store_host": "h" * 300}),
    one("an incarnation of 64 bits", {**STATUS, "ranks": [{**RANK, "incarnation": 2**64 - 1}]}),
    one("a term of 62 bits", {**STATUS, "ledger": {"term": 2**62}}),
    one("a job of megabytes", {**STATUS, "job_id": "j" * 3_000_000}),
    one("a node that is a superscript", {**DRAIN, "node": "²"}, log=""),
    one("a node of 5,000 digits", {**DRAIN, "node": "9" * 5000}),
    one("evidence that is none", {**EVIDENCE_REPORT, "evidence": {0: [[[[]]]]}}, log="refused an evidence report"),
    one("a host with escapes", {**STATUS, "host": "\x1b[2J\x9b31m\0\nnode"}),
    one("a generation from the far future", {**STATUS, "generation": 2**31}, log=""),
    Attack("every edge of every field", "a node of the job", every_edge),
    Attack("10,000 random messages", "a node of the job", random_messages),
    Attack("modules of two nodes", "a node of the job", modules_of_two, log="refused names of modules"),
    Attack("modules for spares to import", "a node of the job", imports_for_spares, log="refused names of modules"),
    Attack(
        "another wire version", "a node of the job", another_version, log=f"wire version {codec.WIRE_VERSION + 1}, this"
    ),
    Attack("reports under another's name", "a node of the job", forged, log="it speaks for another agent"),
    Attack("garbage with the secret", "a node of the job", garbage),
    Attack("100,000 refused messages", "a node of the job", flood, log=REFUSED),
)
