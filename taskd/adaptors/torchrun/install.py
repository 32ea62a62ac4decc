"""Installation of taskd's agent in torchrun.

Rules:

1. Inert unless TASKD_PROCESS_ENABLE is `on`: otherwise nothing of torch is imported, hooked or changed.
2. One change only: `torch.distributed.launcher.api.LocalElasticAgent` becomes a subclass of itself. The change follows
   torch's import of that module, and only if every seam fits. torchrun's command line then accepts a few more options.
3. Nothing raises into the host: an error leaves torchrun as it was, with one warning or traceback.
4. A second installation changes nothing, whichever of the ways came first.
"""

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NoReturn

from taskd.config.switch import is_enabled

logger = logging.getLogger(__name__)

_LAUNCHER: Final = "torch.distributed.launcher.api"
_AGENT: Final = "torch.distributed.elastic.agent.server.local_elastic_agent"
_CLASS: Final = "LocalElasticAgent"

_installed = False


def install() -> None:
    """Replace torchrun's agent by taskd's. Never raises; does nothing if taskd is off."""
    global _installed  # noqa: PLW0603  a process has one torchrun
    try:
        if _installed or not is_enabled():
            return
        _installed = True
        from taskd.adaptors.torchrun.imports import after_import, is_initializing
        from taskd.runtime.system.descriptors import fill_standard_descriptors

        fill_standard_descriptors()  # before torchrun opens a file that gets one of these numbers

        # Torch loads its plugins in the middle of the launcher's own import. The launcher takes the class from the
        # agent's module a little later, so the class must be replaced there.
        after_import(_AGENT if is_initializing(_LAUNCHER) else _LAUNCHER, _replace_agent)
    except Exception:
        logger.exception("taskd could not be installed; torchrun is left as it was")


def _replace_agent(module: ModuleType) -> None:
    try:
        from taskd.adaptors.seams.parts import IN_LAUNCHER, newer
        from taskd.adaptors.torchrun.isolation import isolated

        misfit = IN_LAUNCHER.misfit()
        if misfit:
            logger.warning("%s", misfit)
            return
        if note := newer():
            logger.info("%s", note)
        with isolated():
            from taskd.adaptors.torchrun.agent import TaskdElasticAgent
            from taskd.adaptors.torchrun.options import add_options

        vars(module)[_CLASS] = TaskdElasticAgent
        add_options()
    except Exception:
        logger.exception("taskd could not be installed; torchrun is left as it was")


def rendezvous_handlers() -> Callable[[Any], NoReturn]:
    """Return a function that refuses: the entry point of torch's plugin group `torchrun.handlers`.

    taskd is no rendezvous: the group only gets it loaded.
    """

    def refuse(parameters: Any) -> NoReturn:
        from taskd.errors import ConfigError

        raise ConfigError(
            f"found --rdzv-backend={getattr(parameters, 'backend', 'taskd')}, expected one of torch's own, like c10d "
            "or static: taskd works with any of them and is none itself"
        )

    return refuse
