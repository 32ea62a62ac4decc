"""A peer with the job's secret that is no node of the job, and sends random messages until SIGTERM.

`nonsense.py PORT A_SECOND RANKS SEED COUNTS`; `TASKD_SECRET_FILE` names the file with the secret. Each identity has a
connection of its own, as agents have. The peer sends under some identities of its own, and under a new one now and
then. It also sends under the identity of the job's agent, without that agent's proof. It has that identity from the
manager's answers. It sends for the place that is held, for one that does not exist, and for none.

Half of the messages are random in every field. The other half are those that a node of this job could send. The number
of messages and answers by kind is written into the file COUNTS twice a second.

The peer can pose as a spare, without doing a spare's work. So it can get a place that falls vacant, as any node that
holds the secret: see docs/security.md. No place falls vacant here.
"""

import json
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec import inspect

from taskd.config.address import LOOPBACK, Address
from taskd.core.diagnosis.evidence import Evidence
from taskd.runtime.links.identity import agent_of
from taskd.wire import codec
from taskd.wire.checks import Inspect
from taskd.wire.messages import Directive, Drain, EvidenceReport, Modules, NodeStatus, RankStatus
from tests.fuzz.shapes import anything
from tests.wire.peers import raw_dealer

WRITE_S = 0.5
JOB = "default"
IDENTITIES = 8
NEW_IDENTITY = 0.02
"""Probability, for each message, that a new identity first replaces the oldest one."""
KINDS = (NodeStatus, EvidenceReport, Drain, Modules, Inspect)
HEADER = codec.MAGIC + bytes([codec.WIRE_VERSION])


class Nonsense:
    """Generator of messages, and its knowledge of the job."""

    def __init__(self, ranks: int, dice: random.Random) -> None:
        self._ranks, self._dice = ranks, dice
        self._infos = {kind: inspect.type_info(kind) for kind in (*KINDS, RankStatus, Evidence)}
        self._proofs = deque(secrets.token_hex(16) for _ in range(IDENTITIES))
        self._sequence = 0
        self._directive: Directive | None = None

    def learn(self, answer: object) -> None:
        """Keep the newest directive, which the manager sends to every node."""
        if isinstance(answer, Directive):
            self._directive = answer

    def somebody(self) -> str:
        """Return the proof of one of its identities. Now and then a new one first replaces the oldest."""
        if self._dice.random() < NEW_IDENTITY:
            self._proofs.popleft()
            self._proofs.append(secrets.token_hex(16))
        return self._dice.choice(self._proofs)

    def message(self, proof: str) -> tuple[str, dict[str, Any]]:
        """Return a well-typed message, as its kind and its value."""
        kind = self._dice.choice(KINDS)
        value = anything(self._infos[kind], self._dice)
        if "job_id" in value and self._dice.random() < 0.8:
            value["job_id"] = JOB
        if kind in (NodeStatus, EvidenceReport):
            value |= self._identity(proof)
        likely = self._dice.random() < 0.5
        if likely and kind is NodeStatus:
            value |= self._likely_status()
        elif likely and kind is EvidenceReport:
            value |= self._likely_evidence_report()
        elif likely and kind is Drain:
            value["node"] = self._dice.choice(["0", "1", os.uname().nodename])
        return kind.__name__, value

    def _identity(self, proof: str) -> dict[str, str]:
        dice, held = self._dice, self._directive.places if self._directive is not None else ()
        if held and dice.random() < 0.2:
            return {"agent_id": held[0].agent_id, "proof": dice.choice(["", held[0].agent_id, proof])}
        return {"agent_id": agent_of(proof), "proof": proof}

    def _likely_status(self) -> dict[str, Any]:
        """Return a status that a node of this job could send: its ranks are dead, it leaves, it is far ahead."""
        dice, known = self._dice, self._directive
        self._sequence += 1
        generation = (known.generation if known is not None else 0) + dice.choice((0, 0, 0, 1, 1000, -1))
        term = known.ledger.term if known is not None else 0
        ranks = []
        for rank in range(dice.choice((self._ranks, self._ranks, 0))):
            value = anything(self._infos[RankStatus], dice)
            ranks.append({**value, "rank": rank, "generation": max(0, generation), "incarnation": dice.randrange(5)})
        return {
            "node_rank": dice.choice((0, 0, 0, 1, -1)),
            "node_count": 1,
            "sequence": self._sequence,
            "ranks": ranks,
            "generation": max(0, generation),
            "heard": known.sequence if known is not None else 0,
            "ledger": {"term": max(0, term + dice.choice((0, -1, 1, 60_000))), "places": dice.choice(([], [0]))},
        }

    def _likely_evidence_report(self) -> dict[str, Any]:
        """Return evidence of ranks of the job, none of which is this peer's."""
        ranks = self._dice.sample(range(self._ranks), self._dice.randint(1, self._ranks))
        return {
            "probe": self._directive.probe if self._directive is not None else 0,
            "evidence": {rank: anything(self._infos[Evidence], self._dice) for rank in ranks},
        }


class Mouths:
    """Connections, one for each identity."""

    def __init__(self, port: int, secret: bytes) -> None:
        self._address, self._secret = Address(LOOPBACK, port), secret
        self._context = zmq.Context()
        self._dealers: dict[str, zmq.Socket[bytes]] = {}

    def say(self, proof: str, value: dict[str, Any]) -> bool:
        """Send a message under the identity of this proof. Return False if the manager does not accept it."""
        if proof not in self._dealers:
            if len(self._dealers) >= IDENTITIES:
                self._dealers.pop(next(iter(self._dealers))).close(0)
            self._dealers[proof] = raw_dealer(self._address, self._context, self._secret)
        try:
            self._dealers[proof].send(HEADER + msgspec.msgpack.encode(value), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def listen(self, nonsense: Nonsense, answers: Counter[str]) -> None:
        """Receive, count and evaluate the answers."""
        for dealer in self._dealers.values():
            while dealer.poll(0):
                answer = codec.decode_from_manager(dealer.recv())
                answers[type(answer).__name__] += 1
                nonsense.learn(answer)

    def close(self) -> None:
        """Close all connections."""
        self._context.destroy(linger=0)


def write(path: Path, counts: dict[str, Counter[str]]) -> None:
    """Write the counts into the file as a whole, or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(counts))
    fresh.replace(path)


def main() -> None:
    """Send messages until SIGTERM."""
    port, a_second, ranks, seed, counts = sys.argv[1:]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    secret = Path(os.environ["TASKD_SECRET_FILE"]).read_bytes().strip()
    mouths = Mouths(int(port), secret)
    nonsense = Nonsense(int(ranks), random.Random(int(seed)))
    done: dict[str, Counter[str]] = {"sent": Counter(), "answers": Counter()}
    began_s = written_s = time.monotonic()
    number = 0
    while not over.wait(max(0.0, began_s + number / float(a_second) - time.monotonic())):
        proof = nonsense.somebody()
        kind, value = nonsense.message(proof)
        done["sent"][kind if mouths.say(proof, value) else "not sent"] += 1
        number += 1
        mouths.listen(nonsense, done["answers"])
        if time.monotonic() - written_s > WRITE_S:
            written_s = time.monotonic()
            write(Path(counts), done)
    write(Path(counts), done)
    mouths.close()


if __name__ == "__main__":
    main()
