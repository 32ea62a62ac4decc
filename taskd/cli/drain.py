"""`taskd drain NODE`: move a node's ranks to another node while the job goes on.

Rules:

1. The command only sends a request. The manager decides, and its answer is shown as it is.
2. The manager's address, its secret and the job's name come from the same settings as an agent's. `--manager` comes
   first.
3. Exit codes: 0 if the node is being emptied; 1 if it is not, with the reason and the remedy; 2 for wrong usage.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from taskd.cli.arguments import manager_argument
from taskd.cli.complaint import complain
from taskd.config.address import Address, is_host, manager_address
from taskd.config.job import job_id
from taskd.config.process import environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.security import Security
from taskd.errors import ConfigError, TaskdError
from taskd.wire.text import line

_TIMEOUT_S: Final = 10.0
_SEVERAL: Final = 2
"""Number of nodes for `manager_address`: a job that can be drained has several."""
_EPILOG: Final = """\
The node's ranks go to a spare node; no committed step is lost and no other process is restarted. The drained node gets
no place of this job any more: stop its torchrun. One that is started anew there counts as a new node.

variables:
  TASKD_MANAGER                   the manager's host:port, where --manager is not given
  MASTER_ADDR, TASKD_MANAGER_PORT where it is looked for without TASKD_MANAGER
  TASKD_SECRET, TASKD_SECRET_FILE the job's secret, as on its nodes
  TASKD_JOB_ID                    the job's name, as on its nodes

exit code: 0 the ranks move, 1 they do not (the reason is shown), 2 wrong usage
"""


def drain(arguments: Sequence[str]) -> int:
    """Request the manager to empty a node. Return 0, or 1 with the reason on standard error. Exits for wrong usage."""
    options = _parser().parse_args(list(arguments))
    try:
        env = environment()
        source = Source(env)
        address = options.manager or _find_manager(env)
        security = Security.from_source(source)
        security.check(address, "connect to")
        from taskd.runtime.links.loopback import secured
        from taskd.runtime.links.operator import drain as ask

        security = secured(security, address, run_dir(source))
        print(line(ask(address, security, options.node, options.timeout, job_id(source))))
    except TaskdError as error:
        complain("drain", error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taskd drain",
        description="Move the ranks of a node to a spare one, for example before the node is serviced.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("node", metavar="NODE", type=_node, help="number of the node's place, from 0, or its host name")
    parser.add_argument("--manager", metavar="HOST:PORT", type=manager_argument, help="where the job's manager is")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_TIMEOUT_S,
        help="how long to wait for the manager's answer (default: %(default)g)",
    )
    return parser


def _node(text: str) -> str:
    if not is_host(text):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a place's number, like 3, or a node's host name")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of seconds above 0")
    return seconds


def _find_manager(env: Mapping[str, str]) -> Address:
    if manager_address(env, None) is None:
        raise ConfigError(
            "found no manager's address, expected one: give --manager HOST:PORT, or set TASKD_MANAGER as on the job's "
            "nodes (a manager that is embedded in its only node has no other node to move ranks to)"
        )
    found = manager_address(env, None, _SEVERAL)
    assert found is not None, "only a job of one node embeds its manager"
    return found
