"""Duration of a check of healthy nodes, by warm processes and by cold ones.

    python -m benchmarks.nodecheck --nodes 4 --pairs 5 --json

Method. The nodes are network namespaces of this machine (`tests/nodes.py`; needs root), joined by a bridge, with one
rank each. Their job stands still (`scripts/idle.py`), and each node has one warm standby. Warm and cold checks are made
in turn:

- warm: `taskd check --manager`. The manager orders a check, the standbys of all nodes perform it, and the manager
  judges. `warm_s` is the manager's own figure, from the order to the diagnosis. It includes further rounds
  (`warm_rounds`).
- cold: the same probes and the same trials by `python -m taskd.adaptors.nodecheck`, started on all nodes at once.
  `cold_s` runs from their start to the last one's end. `cold_work_s` is the slowest one's work after its imports.

All nodes share this machine's cores: on machines of their own both would be shorter. The last line has the medians.
`ratio` is cold over warm.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.job import LOOK_S, START_LIMIT_S, BenchmarkError, say, taskd_environment
from taskd.wire.checks import Trial
from taskd.wire.probes import ProbeOrder, ProbeResult
from tests.nodes import Nodes
from tests.nodes_space import NodesUnavailableError

SCRIPT = Path(__file__).with_name("scripts") / "idle.py"
SECRET = "the benchmark's own: 0123456789"
PORT = 29500
STORE_PORT = 29600
_STORE = (
    "import sys, time\nfrom torch.distributed import TCPStore\n"
    f"store = TCPStore('0.0.0.0', {STORE_PORT}, is_master=True, wait_for_workers=False)\n"
    "print('ready', flush=True)\nsys.stdin.read()\n"
)
_MANAGER = (
    "import sys\nfrom taskd.api import init_taskd_manager, start_taskd_manager\n"
    "init_taskd_manager({'job_id': 'default', 'node_nums': int(sys.argv[1]), 'proc_per_node': 1})\n"
    "start_taskd_manager()\n"
)


def main() -> int:
    """Measure and print; return 1 if the measurement failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nodecheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4, choices=range(2, 17), metavar="N", help="2 to 16 (default: 4)")
    parser.add_argument("--pairs", type=int, default=5, help="checks of either sort (default: 5)")
    parser.add_argument("--json", action="store_true", help="all lines as JSON")
    args = parser.parse_args()
    if args.pairs < 1:
        parser.error(f"found --pairs {args.pairs}, expected 1 or more")
    try:
        with tempfile.TemporaryDirectory(prefix="taskd-check-") as folder, Nodes(args.nodes) as nodes:
            measured = Bench(nodes, Path(folder)).measure(args.pairs, as_json=args.json)
    except (NodesUnavailableError, BenchmarkError) as error:
        print(f"benchmarks.nodecheck: {error}", file=sys.stderr)
        return 1
    say(args.json, measured, _in_words(measured))
    return 0


class Bench:
    """The nodes, their idle job, and the checks of them."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes, self.folder = nodes, folder
        self.run_dir = folder / "run"
        more = {"TASKD_SECRET": SECRET, "TASKD_MANAGER": "manager:9601", "GLOO_SOCKET_IFNAME": "eth0"}
        self.env: dict[str, str | None] = {**taskd_environment(self.run_dir), **more}

    def measure(self, pairs: int, *, as_json: bool) -> dict[str, Any]:
        """Make warm and cold checks in turn; return the medians."""
        self._start()
        warm, cold, work, rounds = [], [], [], []
        for pair in range(pairs):
            found = self._warm()
            cold_s, work_s = self._cold(pair)
            warm.append(found["lasted_s"])
            rounds.append(found["rounds"])
            cold.append(cold_s)
            work.append(work_s)
            line = {
                "pair": pair,
                "warm_s": warm[-1],
                "warm_rounds": rounds[-1],
                "cold_s": cold_s,
                "cold_work_s": work_s,
            }
            say(as_json, line, f"warm {warm[-1]:.2f} s in {rounds[-1]} rounds, cold {cold_s:.2f} s")
        warm_s, cold_s = statistics.median(warm), statistics.median(cold)
        return {
            "nodes": len(self.nodes),
            "pairs": pairs,
            "warm_s": round(warm_s, 3),
            "cold_s": round(cold_s, 3),
            "cold_work_s": round(statistics.median(work), 3),
            "ratio": round(cold_s / warm_s, 1),
            "warm_rounds": rounds,
        }

    def _start(self) -> None:
        self.nodes.rename("manager", self.nodes[0])
        program = self.folder / "manager.py"
        program.write_text(_MANAGER)
        output = self.folder / "output"
        count = str(len(self.nodes))
        self.nodes[0].start(["python", program, count], env=self.env, output=output)
        for node in self.nodes:
            words: list[str | Path] = ["python", "-m", "torch.distributed.run", f"--nnodes={count}"]
            words += ["--nproc_per_node=1", f"--node_rank={node.number}", f"--master_addr={self.nodes[0].address}"]
            node.start([*words, f"--master_port={PORT}", SCRIPT], env=self.env, output=output)
        for node in self.nodes:
            if node.number % 2 == 0:
                self._start_store(node.number)
        until_s = time.monotonic() + START_LIMIT_S
        while self._warm_nodes() < len(self.nodes):
            if time.monotonic() > until_s:
                raise BenchmarkError(f"the nodes were not warm within {START_LIMIT_S} s: {output.read_text()[-2000:]}")
            time.sleep(LOOK_S)

    def _start_store(self, number: int) -> None:
        """Start a store for the cold trials of this node with the next one."""
        self.nodes[number].start(["sh", "-c", f'sleep infinity | {sys.executable} -c "$0"', _STORE], env=self.env)

    def _warm_nodes(self) -> int:
        journals = [path.read_text().splitlines() for path in self.run_dir.rglob("journal.jsonl")]
        events = [json.loads(line) for lines in journals for line in lines]
        told = {event["node_rank"]: event["count"] for event in events if event["event"] == "standbys"}
        return sum(count > 0 for count in told.values())

    def _warm(self) -> dict[str, Any]:
        output = self.folder / "warm.json"
        output.unlink(missing_ok=True)
        words = ["python", "-m", "taskd", "check", "--manager", "manager:9601", "--json"]
        process = self.nodes[0].start(words, env=self.env, output=output)
        process.wait(START_LIMIT_S)
        try:
            found: dict[str, Any] = json.loads(output.read_text())
        except ValueError as error:
            raise BenchmarkError(f"no diagnosis came: {output.read_text()[-2000:]}") from error
        return found

    def _cold(self, pair: int) -> tuple[float, float]:
        """Return the seconds from the processes' start to the last one's end, and those of the slowest one's work."""
        orders = [self._order(node.number, pair) for node in self.nodes]
        begun_s = time.monotonic()
        started = []
        for node, order in zip(self.nodes, orders, strict=True):
            given, output = self.folder / f"order-{node.number}", self.folder / f"cold-{node.number}"
            given.write_bytes(msgspec.json.encode(order))
            output.unlink(missing_ok=True)
            command = f"exec {sys.executable} -m taskd.adaptors.nodecheck < {given}"
            started.append(node.start(["sh", "-c", command], env=self.env, output=output))
        for process in started:
            process.wait(START_LIMIT_S)
        cold_s = time.monotonic() - begun_s
        results = [self._result(node.number) for node in self.nodes]
        return round(cold_s, 3), round(max(map(_work_s, results)), 3)

    def _order(self, number: int, pair: int) -> ProbeOrder:
        first = number - number % 2
        peer = number + 1 if number == first else first
        trial = None
        if peer < len(self.nodes):
            host = self.nodes[first].address
            name = f"cold-{pair}-{first}"
            trial = Trial(peer=f"node{peer}", name=name, first=number == first, store_host=host, store_port=STORE_PORT)
        return ProbeOrder(own=True, trial=trial, run_dir=bytes(self.folder), timeout_s=60.0)

    def _result(self, number: int) -> ProbeResult:
        text = (self.folder / f"cold-{number}").read_bytes().splitlines()
        try:
            result = msgspec.json.decode(text[-1], type=ProbeResult)
        except (IndexError, msgspec.MsgspecError) as error:
            raise BenchmarkError(f"a cold check has given no result: {text[-3:]}") from error
        for part in (result.own, result.trial):
            if part is not None and not part.ok:
                raise BenchmarkError(f"a cold check of a healthy node has failed: {part.cause}")
        return result


def _in_words(measured: dict[str, Any]) -> str:
    return (
        f"{measured['nodes']} healthy nodes: {measured['warm_s']:.2f} s by warm processes, {measured['cold_s']:.2f} s "
        f"by cold ones ({measured['cold_work_s']:.2f} s after their imports), {measured['ratio']:.1f} times as long"
    )


def _work_s(result: ProbeResult) -> float:
    return sum(part.elapsed_s for part in (result.own, result.trial) if part is not None)


if __name__ == "__main__":
    sys.exit(main())
