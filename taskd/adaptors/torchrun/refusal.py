"""Refusal of wrong settings: torchrun ends before a rank starts, with status 2 and two lines on the error."""

import logging
import sys
from typing import Final, NoReturn

from torch.distributed.elastic.agent.server.api import WorkerSpec

from taskd.adaptors.torchrun import entry
from taskd.adaptors.torchrun.given import given_master_addr
from taskd.config.preflight import check_settings
from taskd.config.process import own_environment
from taskd.errors import ConfigError, SecretError, TaskdError
from taskd.wire.text import line

logger = logging.getLogger(__name__)
WRONG_USAGE: Final = 2


def refuse_wrong_settings(spec: WorkerSpec) -> None:
    """Exit with status 2 if a setting is wrong. Ranks that run a function are none of taskd's business."""
    if not isinstance(spec.entrypoint, str):
        return
    try:
        check_settings(own_environment(), given_master_addr(spec), entry.most_nodes(spec))
    except (ConfigError, SecretError) as error:
        refuse(error)
    except Exception:
        logger.exception("taskd could not look at its settings")


def refuse(error: TaskdError) -> NoReturn:
    """Write an error and its remedy to stderr, and exit with status 2."""
    found, _, remedy = str(error).rpartition("; ")
    if sys.stderr is not None:
        sys.stderr.write(f"{line(f'error: {found}')}\n{line(f'hint: {remedy}')}\n")
    raise SystemExit(WRONG_USAGE)
