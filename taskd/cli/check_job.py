"""`taskd check --manager HOST:PORT`: the nodes of a running job, checked against each other.

Rules:

1. The manager's diagnosis is shown as it is. It has no effect on the job, which goes on meanwhile.
2. Exit codes: 0 if all nodes and links are healthy; 1 if not, or if there is no answer.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rich.console import RenderableType

from taskd.cli.complaint import complain
from taskd.config.address import Address
from taskd.config.job import job_id
from taskd.config.process import environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.security import Security
from taskd.errors import TaskdError

_HEALTHY: Final = "healthy"
_RATES: Final = (
    (">compute TFLOP/s", "compute_tflops"),
    (">memory GB/s", "memory_gbps"),
    (">loopback GB/s", "loopback_gbps"),
    (">disk MB/s", "disk_mbps"),
    (">clock s", "clock_s"),
)


def check_job(address: Address, timeout_s: float, *, as_json: bool) -> int:
    """Have the job's manager check its nodes, and print the results. Return the exit code."""
    try:
        source = Source(environment())
        security = Security.from_source(source)
        security.check(address, "connect to")
        from taskd.runtime.links.loopback import secured
        from taskd.runtime.links.operator import inspect

        text = inspect(address, secured(security, address, run_dir(source)), timeout_s, job_id(source))
    except TaskdError as error:
        complain("check", error)
        return 1
    found: dict[str, Any] = json.loads(text)
    if as_json:
        print(text)
    else:
        _print(found)
    well = all(node["health"] == _HEALTHY for node in found["nodes"].values()) and not found["links"]
    return 0 if well else 1


def _print(found: Mapping[str, Any]) -> None:
    from taskd.cli.tables import ALARM, GOOD, HEAD, Listing, block, heading, line, output, page

    nodes: dict[str, Any] = found["nodes"]
    rounds = f"{found['rounds']} round{'s' * (found['rounds'] != 1)}"
    rows = [
        ((name, node["health"], *_figures(node["own"] or {})), "" if node["health"] == _HEALTHY else ALARM)
        for name, node in nodes.items()
    ]
    parts: list[RenderableType] = [
        line(f"{len(nodes)} node{'s' * (len(nodes) != 1)} · {rounds} · took {found['lasted_s']:.1f} s", HEAD),
        Listing(("node", "diagnosis", *(title for title, _ in _RATES)), rows),
    ]
    wrong = [f"{name} is {node['health']}: {node['text']}" for name, node in nodes.items() if node["text"]]
    wrong += [
        f"the link of {' and '.join(link['nodes'])} is {link['health']}: {link['text']}" for link in found["links"]
    ]
    for title, lines, style in (("What is wrong", wrong, ALARM), ("Also", list(found["notes"]), "")):
        if lines:
            parts += [heading(title), block(lines, style)]
    healthy = not wrong
    parts.append(heading("all are healthy" if healthy else "not all are healthy", GOOD if healthy else ALARM))
    page(output(), parts)


def _figures(own: Mapping[str, Any]) -> list[str]:
    return [f"{own[name]:.3g}" if own.get(name) else "-" for _, name in _RATES]
