"""A manager whose messages a test determines."""

import time
from collections.abc import Callable

import msgspec

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.ports import NodeIdentity
from taskd.runtime.links.links import ManagerSocket, Peer
from taskd.wire import messages
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, NodeStatus, Order, RankOrder, Refusal, Stage

LIMIT_S = 20.0
STORE = Rendezvous("127.0.0.1", 1)
IDENTITY = NodeIdentity(NodeRank(0), 1, (JobRank(0), JobRank(1)), None, 5)


class ScriptedManager:
    """Manager for one agent, with messages from the test."""

    def __init__(self, socket: ManagerSocket) -> None:
        self.socket = socket
        self.heard: list[NodeStatus] = []
        self.evidence_reports: list[messages.EvidenceReport] = []
        self.received: list[NodeStatus | messages.EvidenceReport] = []
        self.modules: list[messages.Modules] = []
        self.sequence = 0
        self.records = ""
        self._peer: Peer | None = None

    def until(self, wanted: Callable[[NodeStatus], bool]) -> NodeStatus:
        """Return the next report for which `wanted` holds."""
        end_s = time.monotonic() + LIMIT_S
        while not (self.heard and wanted(self.heard[-1])):
            assert time.monotonic() < end_s, self.heard[-1:]
            self.listen(0.05)
        return self.heard[-1]

    def listen(self, length_s: float) -> None:
        """Receive all messages that come."""
        if self.socket.poll(length_s):
            for peer, status in self.socket.receive():
                self._peer = peer
                if isinstance(status, messages.Modules):
                    self.modules.append(status)
                    continue
                assert isinstance(status, NodeStatus | messages.EvidenceReport)
                self.received.append(status)
                if isinstance(status, messages.EvidenceReport):
                    self.evidence_reports.append(status)
                    continue
                self.heard.append(status)

    def evidence_report(self, *, asked: bool) -> dict[int, Evidence]:
        """Return the next evidence report, which must be one of this kind."""
        end_s = time.monotonic() + LIMIT_S
        while not self.evidence_reports:
            assert time.monotonic() < end_s
            self.listen(0.05)
        told = self.evidence_reports.pop(0)
        assert bool(told.probe) is asked
        return {rank: msgspec.msgpack.decode(raw, type=Evidence) for rank, raw in told.evidence.items()}

    def say(
        self,
        order: Order,
        generation: int,
        *incarnations: int,
        reason: str = "",
        exit_code: int = 0,
        probe: int = 0,
    ) -> None:
        """Send the agent an order. `incarnations`: those of ranks 0, 1, ..."""
        assert self._peer is not None
        self.sequence += 1
        ranks = tuple(RankOrder(rank=JobRank(rank), incarnation=number) for rank, number in enumerate(incarnations))
        directive = Directive(
            job_id="default",
            sequence=self.sequence,
            generation=generation,
            order=order,
            ranks=ranks,
            reason=reason,
            exit_code=exit_code,
            probe=probe,
            records=self.records,
        )
        assert self.socket.send(self._peer, directive)

    def refuse(self, reason: str) -> None:
        assert self._peer is not None
        assert self.socket.send(self._peer, Refusal(reason=reason))


def stages(status: NodeStatus) -> list[Stage]:
    return [rank.stage for rank in status.ranks]
