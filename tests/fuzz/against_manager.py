"""A real manager with three live agents, and a peer with the job's secret that says anything."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from taskd.config.manager import ManagerConfig
from taskd.core.recovery import Phase
from taskd.runtime.links.identity import agent_of
from taskd.runtime.links.links import AgentSocket
from taskd.runtime.manager.manager import Manager
from taskd.wire import codec
from taskd.wire.messages import Directive, FromAgent, Refusal
from tests.fuzz.nodes import PER_NODE, Node
from tests.fuzz.wellformed import Known, Maker
from tests.runtime.test_manager import security_of
from tests.runtime.test_strange_reports import STATUS
from tests.wire.peers import LIMIT_S

NODES: Final = 3
_NAMES: Final = 8
"""By so many names the peer speaks at a time."""
_RENAMED: Final = 300
"""After so many messages it has forgotten one of them, and registers by another."""
_BATCH: Final = 64


class Tongue:
    """What a peer with many names says of what exists."""

    def __init__(self, dice: random.Random, manager: Manager) -> None:
        self._dice = dice
        self._manager = manager
        self._sequence = 0
        self._names = [self._name() for _ in range(_NAMES)]
        self._maker = Maker(FromAgent, dice, self.known)

    def _name(self) -> str:
        return f"{self._dice.getrandbits(64):x}"

    def register(self) -> bytes:
        """The first word of a node that has done nothing wrong yet."""
        proof = self._names[0]
        return codec.encode(msgspec.structs.replace(STATUS, proof=proof, agent_id=agent_of(proof)))

    def frames(self, count: int) -> Iterator[bytes]:
        """So many messages: each name registers, reports, leaves and comes back, out of step with the others."""
        dice = self._dice
        for number in range(count):
            if number % _RENAMED == 0:
                self._names[dice.randrange(_NAMES)] = self._name()
            proof = dice.choice(self._names)
            self._sequence += 1
            yield self._maker.frame(
                dice.choice(("NodeStatus", "NodeStatus", "NodeStatus", "EvidenceReport", None)),
                **({"proof": proof, "agent_id": agent_of(proof)} if dice.random() < 0.95 else {}),
                **({"ranks": []} if dice.random() < 0.7 else {}),
            )

    def known(self) -> Known:
        """What there is to refer to."""
        core = self._manager._core
        world, term, generation = core.world, core.term, core.world.generation
        ranks, places = [*range(NODES * PER_NODE), NODES * PER_NODE], [0, 1, 2, NODES, -1]
        return {
            "job_id": ["job"] * 50 + ["other"],
            "agent_id": [*world.nodes.holders.values(), *map(agent_of, self._names)],
            "excluded": [*world.nodes.holders.values()],
            "proof": [*self._names, *world.nodes.holders.values()],
            "node_rank": [-1] * 12 + places[:4],
            "wants": places,
            "places": places[:4],
            "rank": ranks,
            "node": ["0", "1", "2", "3", "-1", "x"] if self._dice.random() < 0.01 else ["7", "x", "-1"],
            "incarnation": [-1, 0, 1, 2],
            "generation": [generation, generation, max(0, generation - 1), generation + 1],
            "term": [0] * 4 + [term, term, term - 1, term + 1, term + 60_000],
            "sequence": [self._sequence, self._sequence, self._sequence - 3],
            "heard": [core.job.orders.sequence, core.job.orders.sequence - 1, 0],
            "probe": [core.watch.probe, 0, core.job.orders.sequence],
            "step": [-1, 0, 3, 4, 100],
            "node_count": [NODES] * 9 + [1, NODES + 1],
            "min_nodes": [0, 0, 1, NODES],
            "store_host": ["127.0.0.1"],
            "store_port": [1],
            "key": ["key", "another"],
            "names": ["numpy", "torch", "json"],
            "number": [core.job.orders.sequence, 0],
            "host": ["host", "another"],
        }


class ManagerSide:
    """Runs the manager in a thread of its own or, `direct`, one turn after each batch of messages."""

    def __init__(self, dice: random.Random, folder: Path, *, direct: bool) -> None:
        self._direct = direct
        self._counts: Counter[str] = Counter()
        keys = {"job_id": "job", "node_nums": NODES, "proc_per_node": PER_NODE, "port": 0, "run_dir": str(folder)}
        self._manager = Manager(ManagerConfig.from_mapping({**keys, "node_timeout_s": 60.0}, env={}))
        if not direct:
            self._manager.start()
        self._nodes = [Node(self._manager.address, folder, place, NODES) for place in range(NODES)]
        self._link = AgentSocket(self._manager.address, security_of(self._manager))
        self._await(lambda: self._manager._core.phase is Phase.RUNNING and self._link.connected, "the job did not form")
        self._holders = dict(self._manager._core.world.nodes.holders)
        self._tongue = Tongue(dice, self._manager)
        self._link._socket.send(self._tongue.register())
        self._await(lambda: len(self._manager._peers) > NODES, "the peer is not heard")
        self._peer = list(self._manager._peers.values())[-1]

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + 2 * LIMIT_S
        while not holds():
            assert time.monotonic() < until_s, what
            if self._direct:
                self._manager._turn()
            self._link.poll(0.01)
            self._read()

    def _read(self) -> None:
        for message in self._link.receive():
            if isinstance(message, Refusal):
                self._counts["unfit"] += 1
            self._counts["answers"] += isinstance(message, Directive)

    def send(self, count: int) -> None:
        """By the socket, or by hand."""
        for number, frame in enumerate(self._tongue.frames(count)):
            if self._direct:
                self._give(frame)
            else:
                self._link._socket.send(frame)
            if number % _BATCH == 0:
                self._read()
                if self._direct:
                    self._manager._turn()

    def _give(self, frame: bytes) -> None:
        try:
            message = codec.decode_from_agent(frame)
        except codec.BadFrameError as error:
            self._counts[error.fault.value] += 1
            return
        self._manager._take(self._peer, message)

    def check(self) -> list[str]:
        """Each agent is answered, the job runs as it did, and nobody but the three holds a place."""
        asked_s = time.monotonic()
        wrong = []
        try:
            self._await(lambda: all(node.heard_s > asked_s for node in self._nodes), "answered")
        except AssertionError:
            wrong.append(f"agents {[node.place for node in self._nodes if node.heard_s <= asked_s]} are not answered")
        core = self._manager._core
        found = (core.phase, core.world.generation, core.world.nodes.holders)
        if found != (Phase.RUNNING, 0, self._holders):
            wrong.append(f"found {found}, expected the job to run as it did")
        if not self._direct and not (self._manager._thread and self._manager._thread.is_alive()):
            wrong.append("the manager has ended")
        if self._manager._failed:
            wrong.append(f"the manager has begun anew {self._manager._failed} times")
        return wrong

    def refused(self) -> Counter[str]:
        return (self._counts + self._manager._socket.refused) - Counter(answers=self._counts["answers"])

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        self._link.close()
        self._manager.stop()
        if self._direct:
            self._manager.run()
