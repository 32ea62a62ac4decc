"""The names that a `manager.py` written for MindCluster TaskD imports.

Rules:

1. Only names that taskd can support are offered. Worker, agent and proxy need no calls: `torchrun` starts their
   replacements, and agents connect to the manager directly.
2. Nothing is raised: each function returns whether it succeeded. It logs what was found, what was expected, and the
   remedy.
"""

import logging
import threading

from taskd.api.serving import make_records_visible, serve, stopped_by_signals
from taskd.config.address import Address
from taskd.config.agent import warn_of_unknown_variables
from taskd.config.manager import ManagerConfig
from taskd.config.process import environment
from taskd.errors import TaskdError

__all__ = ["init_taskd_manager", "start_taskd_manager"]

logger = logging.getLogger(__name__)

_config: ManagerConfig | None = None


def init_taskd_manager(config: dict[str, object]) -> bool:
    """Check and keep the configuration of this job's manager.

    `config` holds at least `job_id`, `node_nums` and `proc_per_node`. docs/configuration.md lists all keys. A key that
    is absent or None comes from the environment. Returns False, with the error logged, if anything in it is wrong.
    """
    global _config  # noqa: PLW0603  # the two calls of a manager.py share nothing else
    make_records_visible()
    _config = None
    env = environment()
    try:
        _config = ManagerConfig.from_mapping(config, env)
        warn_of_unknown_variables(env)
    except TaskdError as error:
        logger.error("the manager is not configured: %s", error)  # a user's mistake needs no trace
    except Exception:
        logger.exception("the manager is not configured, by a bug in taskd (please report this)")
    return _config is not None


def start_taskd_manager() -> bool:
    """Serve the job until it ends, or until SIGTERM or SIGINT.

    Returns True if it served, even if the job failed. Returns False, with the error logged, if it could not serve.
    """
    make_records_visible()
    if _config is None:
        logger.error("the manager has no configuration, expected one; call init_taskd_manager first and see its errors")
        return False
    try:
        stop = threading.Event()
        with stopped_by_signals(stop.set):
            serve(_config, stop, _announce)
    except TaskdError as error:
        logger.error("the manager does not run: %s", error)  # a user's mistake needs no trace
        return False
    except Exception:
        logger.exception("the manager ended by a bug in taskd (please report this); the training goes on without it")
        return False
    return True


def _announce(address: Address) -> None:
    assert _config is not None, "it is being served"
    logger.info("manager of job %s listens on %s", _config.job_id, address)
