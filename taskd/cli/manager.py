"""`taskd manager`: serve a job's nodes, without a `manager.py`.

Rules:

1. An option is the same setting as the key of `init_taskd_manager` and its variable. It has the same bounds, and comes
   before the variable. All other settings of the manager come from their variables.
2. The secret is no option, because everyone who can list processes could read it.
3. Standard output has one line, once the manager listens: its address and its job. Records go to standard error.
4. Exit codes: 0 if it has served, even if the job failed; 1 if it could not, with the reason and the remedy; 2 for
   wrong usage, in one line.
"""

import argparse
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from taskd.api.serving import make_records_visible, serve, stopped_by_signals
from taskd.cli.arguments import OneLineParser
from taskd.cli.complaint import complain
from taskd.config import settings
from taskd.config.address import Address
from taskd.config.agent import warn_of_unknown_variables
from taskd.config.job import job_id
from taskd.config.manager import ManagerConfig, listening_host
from taskd.config.process import environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.schema import Setting
from taskd.errors import ConfigError, TaskdError

_EPILOG: Final = """\
One manager serves one job, on any machine that all its nodes reach: most often the first node. Tell the nodes where it
is with TASKD_MANAGER=HOST:PORT; without that they look on the host of MASTER_ADDR, at port 9601. It ends with the job,
or at SIGTERM or Ctrl-C; the training goes on while it is away, and one that is started again takes the job over.

A job on one node needs none: its torchrun has one inside.

variables:
  TASKD_SECRET                    the job's secret, as on its nodes; make one with: openssl rand -hex 32
  TASKD_JOB_ID, TASKD_RUN_DIR, TASKD_SECRET_FILE, TASKD_MANAGER_HOST, TASKD_MANAGER_PORT, TASKD_NODE_NUMS,
  TASKD_PROC_PER_NODE             in place of the options
  TASKD_RECOVER_STRATEGY, ...     all other settings of a manager: docs/configuration.md

example:
  TASKD_SECRET_FILE=/run/secrets/taskd taskd manager --nodes 4 --procs-per-node 8

exit code: 0 it has served the job, whatever became of that, 1 it could not (the reason is shown), 2 wrong usage
"""
_REQUIRED: Final = {settings.NODE_NUMS: "--nodes", settings.PROC_PER_NODE: "--procs-per-node"}


def manager(arguments: Sequence[str]) -> int:
    """Serve one job. Return 0, or 1 with the reason on standard error. Exits for wrong usage."""
    stop = threading.Event()
    with stopped_by_signals(stop.set):
        env = environment()
        keys = _keys(arguments, env)
        make_records_visible()
        try:
            config = ManagerConfig.from_mapping(keys, env)
            warn_of_unknown_variables(env)
            serve(config, stop, lambda address: _announce(config, address))
        except TaskdError as error:
            complain("manager", error)
            return 1
    return 0


def _announce(config: ManagerConfig, address: Address) -> None:
    nodes, ranks = config.policy.node_count, config.policy.ranks_per_node
    size = f"{nodes} {'node' if nodes == 1 else 'nodes'} with {ranks} {'rank' if ranks == 1 else 'ranks'} each"
    print(f"manager of job {config.job_id}, {size}, listens on {address}", flush=True)


def _keys(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, object]:
    """Parse the options. Return their values by the keys of their settings."""
    parser = _parser()
    keys = dict(vars(parser.parse_args(list(arguments))))
    for setting, option in _REQUIRED.items():
        if keys[str(setting.key)] is None and not Source(env).gives(setting):
            parser.error(f"found neither {option} nor {setting.variable}, expected {setting.expected}; add {option} N")
    return keys


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="taskd manager",
        description="Serve the nodes of a job: hear of their faults, decide, and tell them how to go on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --secret must not mean --secret-file
    )

    def add(option: str, metavar: str, setting: Setting, read: Callable[[Source], object], meaning: str) -> None:
        parser.add_argument(option, metavar=metavar, dest=setting.key, type=_like(setting, read), help=meaning)

    add("--nodes", "N", settings.NODE_NUMS, lambda source: source.whole(settings.NODE_NUMS), "nodes of the job")
    add(
        "--procs-per-node",
        "N",
        settings.PROC_PER_NODE,
        lambda source: source.whole(settings.PROC_PER_NODE),
        "training processes on each node, torchrun's --nproc-per-node",
    )
    add("--job-id", "NAME", settings.JOB_ID, job_id, "name of the job, as on its nodes (default: default)")
    add(
        "--host",
        "HOST",
        settings.HOST,
        listening_host,
        "address to listen on, * for all (default: all with a secret, else 127.0.0.1)",
    )
    add(
        "--port",
        "PORT",
        settings.PORT,
        lambda source: source.whole(settings.PORT),
        f"port to listen on, 0 for any free one (default: {settings.PORT.default})",
    )
    add("--run-dir", "DIR", settings.RUN_DIR, run_dir, "directory for its records")
    add(
        "--secret-file",
        "FILE",
        settings.SECRET_FILE,
        lambda source: source.path(settings.SECRET_FILE),
        "private file that holds the job's secret",
    )
    return parser


def _like(setting: Setting, read: Callable[[Source], object]) -> Callable[[str], str]:
    """Return a check of an option's text: it returns the text unchanged if `read` accepts it for the setting."""

    def check(text: str) -> str:
        source = Source({}, {str(setting.key): text})
        try:
            read(source)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{source.label(setting)}: ")) from None
        return text

    return check
