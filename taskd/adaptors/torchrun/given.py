"""Options that the user gave torchrun, on the command line or by its variables."""

import sys
from typing import Final

from torch.distributed.elastic.agent.server.api import WorkerSpec

from taskd.config.process import environment
from taskd.core.recovery.budget import DEFAULT_MAX_RESTARTS

_DEFAULT_MASTER_ADDR: Final = "127.0.0.1"
_LOG_OPTIONS: Final = (("-r", "PET_REDIRECTS"), ("--re", "PET_REDIRECTS"), ("-t", "PET_TEE"), ("--t", "PET_TEE"))


def given_master_addr(spec: WorkerSpec) -> str | None:
    """Return the master address that the user gave, None if torchrun chose it.

    torchrun fills in its default address with a static rendezvous. Only the command line or the variable shows the
    user's choice.
    """
    address = spec.master_addr
    if address == _DEFAULT_MASTER_ADDR and not is_given(spec, "--master-a", "PET_MASTER_ADDR"):
        return None
    return address


def max_restarts(spec: WorkerSpec) -> int:
    """Return the job's restart budget.

    torchrun's default, which ends a job at its first fault, counts only if the user asked for it.
    """
    asked = spec.max_restarts > 0 or is_given(spec, "--max", "PET_MAX_RESTARTS")
    return int(spec.max_restarts) if asked else DEFAULT_MAX_RESTARTS


def keeps_logs(spec: WorkerSpec) -> bool:
    """Return whether the ranks' output goes to files."""
    return any(is_given(spec, *option) for option in _LOG_OPTIONS)


def is_given(spec: WorkerSpec, option: str, variable: str) -> bool:
    """Return whether the user has set an option of torchrun, on the command line or as one of its variables.

    `option` is the shortest form that torchrun accepts. The script's own arguments come last and do not count.
    """
    own = list(sys.argv[1:])
    for arg in reversed(spec.args):
        if not own or own[-1] != str(arg):
            break
        own.pop()
    return variable in environment() or any(arg.replace("_", "-").startswith(option) for arg in own)
