"""Check of every setting before torchrun starts a rank.

Rules:

1. A variable of taskd with a wrong value is an error, whether torchrun, its manager or a rank reads it. Variables that
   an agent sets for its processes are not checked, because they may belong to an outer job.
2. An address in TASKD_MANAGER that needs a secret is an error if no secret is given.
3. An address from MASTER_ADDR alone is no setting of taskd. If it is wrong, the job is left to torchrun.
"""

from collections.abc import Mapping
from typing import Any, Final

from taskd.config import settings
from taskd.config.address import manager_address
from taskd.config.job import job_id
from taskd.config.manager import ManagerConfig
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.schema import Format, Reader
from taskd.config.security import Security
from taskd.errors import ConfigError

_READ: Final[Mapping[Format, Any]] = {
    Format.TEXT: Source.text,
    Format.ADDRESS: Source.text,
    Format.WHOLE: Source.whole_or_none,
    Format.SECONDS: Source.seconds_or_none,
    Format.FACTOR: Source.factor,
    Format.SWITCH: Source.switch,
    Format.INEXACT: Source.allows,
    Format.COMMAND: Source.command,
    Format.MODULES: Source.modules,
    Format.STRATEGIES: Source.strategies,
    Format.SELF_CHECK: Source.self_check,
    Format.PATH: Source.path,
}


def check_settings(env: Mapping[str, str], master_addr: str | None, node_count: int) -> None:
    """Raise `ConfigError` or `SecretError` for the first setting of this torchrun that is wrong.

    `master_addr` is the value of torchrun's `--master-addr`, None if the user did not give it.
    """
    source = Source(env)
    for setting in settings.SETTINGS:
        if source.gives(setting) and Reader.WORKER not in setting.readers:
            _READ[setting.format](source, setting)
    run_dir(source)
    security, given = Security.from_source(source), source.text(settings.MANAGER)
    try:
        address = manager_address(env, master_addr, node_count)
    except ConfigError:
        if given is not None or source.whole(settings.PORT) == 0:
            raise
        return
    if given is not None and address is not None:
        security.check(address, "connect to")
    if node_count == 1 and (address is None or given is None):  # torchrun may have the manager inside
        ManagerConfig.from_mapping({"job_id": job_id(source), "node_nums": 1, "proc_per_node": 1}, env)
