"""Two nodes that try the link between them."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from taskd.core.nodecheck.probes import merge_trial
from taskd.wire.checks import Trial, TrialResult
from taskd.wire.probes import ProbeOrder, ProbeResult
from tests.nodes import Node, Nodes
from tests.nodes_or_skip import nodes_or_skip

STORE_PORT = 29400
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True, scope="session")
def device_begun() -> None:
    """Open the descriptors that a device's driver opens once, before the leak census of the first test."""
    if torch.cuda.is_available():
        torch.mm(torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")).cpu()


@pytest.fixture
def nodes(leak_mark: str) -> Iterator[Nodes]:
    with nodes_or_skip(2) as made:
        yield made


class Side:
    """One node's part of a trial."""

    def __init__(self, node: Node, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self.node = node
        self.process = process
        self._results = folder / f"{node.name}.json"

    @property
    def begun(self) -> bool:
        """True if its imports are done."""
        return Path(f"{self._results}.forking").exists()

    def results(self) -> list[ProbeResult]:
        assert self.process.wait(TIMEOUT_S) == 0
        return msgspec.json.decode(self._results.read_bytes(), type=list[ProbeResult])

    def trial(self) -> TrialResult:
        merged = merge_trial(self.results())
        assert merged is not None
        return merged

    def received_bytes(self) -> int:
        """Bytes received so far by the node's interface."""
        lines = Path(f"/proc/{self.node.space.pid}/net/dev").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == "eth0:")


Start = Callable[..., Side]


@pytest.fixture
def start(nodes: Nodes, run_dir: Path) -> Iterator[Start]:
    """Yield a function that starts one node's part of a trial. The store is at the first node."""
    outputs: list[Path] = []

    def begin(number: int, per_node: int = 1, timeout_s: float = 40.0, trials: int = 1) -> Side:
        node, peer = nodes[number], nodes[1 - number]
        orders = []
        for trial in range(trials):
            to = Trial(
                peer=peer.name,
                name=f"trial {trial}",
                first=number == trial % 2,
                store_host=nodes[0].address,
                store_port=STORE_PORT,
            )
            one = ProbeOrder(trial=to, local_world_size=per_node, timeout_s=timeout_s)
            orders += [msgspec.structs.replace(one, local_rank=rank) for rank in range(per_node)]
        output = run_dir / f"{node.name}.txt"
        outputs.append(output)
        results = run_dir / f"{node.name}.json"
        program: list[str | Path] = [
            "python",
            "-m",
            "tests.nodecheck.node_program",
            results,
            str(STORE_PORT if number == 0 else 0),
            msgspec.json.encode(orders).decode(),
        ]
        return Side(node, run_dir, node.start(program, output=output))

    yield begin
    for output in outputs:
        print(f"--- {output.name}\n{output.read_text(errors='replace')}")


@pytest.fixture
def shape(nodes: Nodes) -> Callable[[Node, str], None]:
    """Return a function that limits the traffic out of a node to `rate` (in `tc`'s format)."""

    def slow(node: Node, rate: str) -> None:
        command = f"tc qdisc replace dev eth0 root tbf rate {rate} burst 16kb latency 400ms"
        subprocess.run(["nsenter", f"--target={node.space.pid}", "--net", "--", *command.split()], check=True)

    return slow


def children(node: Node, pid: int) -> list[int]:
    """Return the forks of one of a node's processes, by their pids inside, in the order of their start."""
    outside = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    inside = {seen: own for own, seen in node.pids().items()}
    return [inside[int(one)] for one in outside]
