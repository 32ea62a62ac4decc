"""Start of a rank by the user's own command; taskd prepares it before the interpreter reads the script.

Rules:

1. Nothing of the interpreter is imitated. PYTHONPATH begins with a directory of ours. The interpreter imports its
   `sitecustomize` before it puts the script's directory on the path. Then it runs the script as always.
2. The directory is removed from the path and from the environment at once. Then the machine's own `sitecustomize`,
   which it hides, is imported. A process that the script starts inherits nothing of it.
3. The template spends its life there too: the ranks' command starts it, followed by `TEMPLATE`. A process that becomes
   a rank only has to return. The template's imports run with the ranks' arguments, because some modules read them at
   once.
4. A script's fatal error comes from the interpreter's audit event, whatever hook the script has set.
5. If taskd cannot prepare a rank, the script runs anyway, with one traceback in the log. An error in a template, or in
   a process that it forked, ends that process instead (`python/start/sitecustomize.py`). It holds no rank, or is not
   fully prepared. A cold process replaces it.
6. Where torchrun starts a wrapper (`--no-python numactl … python train.py`), each Python in the wrapper's session keeps
   the directory in its environment. The one that imports torch is the rank.
"""

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from taskd.adaptors.torchrun.command import TEMPLATE
from taskd.adaptors.torchrun.imports import before_import
from taskd.adaptors.torchrun.isolation import ImportIsolation
from taskd.adaptors.torchrun.script import prepare_rank, tell_agent
from taskd.config.process import (
    forget_preload,
    forget_start,
    forget_wrapper,
    is_wrapped,
    profile_nccl_no_more,
    take_over,
    take_over_numbers,
)
from taskd.config.settings import CLEANING, DESCRIPTORS, SIGCHLD_IGNORED
from taskd.config.worker import TemplateConfig, WorkerConfig
from taskd.errors import ConfigError, TaskdError
from taskd.runtime.system.descriptors import fill_standard_descriptors, set_descriptor_limit
from taskd.runtime.system.processes import parent_of
from taskd.runtime.system.segments import await_removal
from taskd.runtime.system.sigchld import ignore_sigchld

logger = logging.getLogger(__name__)
_MODULE: Final = "sitecustomize"
_CLEANUP_S: Final = 5.0
"""Time for processes that remove a former rank's shared memory, in seconds: then they are killed."""


def begin(directory: str, isolation: ImportIsolation) -> None:
    """Prepare this process while the interpreter starts. Returns when the script is to run."""
    fill_standard_descriptors()
    wrapped = is_wrapped()
    if not wrapped:
        forget_start(directory)
        forget_wrapper()
    template = sys.argv[-1:] == [TEMPLATE]
    _restore_limit()
    ignored = take_over(SIGCHLD_IGNORED)
    import_the_machines_own()
    if template:
        _be_template(isolation)
    else:
        if ignored:
            ignore_sigchld()
        if wrapped:
            before_import("torch", lambda: _become_wrapped(directory, isolation))
        else:
            _try_to_prepare(isolation, wrapped=False)
    await_removal(take_over_numbers(CLEANING), _CLEANUP_S)
    isolation.open()
    sys.addaudithook(_hear)


def _become_wrapped(directory: str, isolation: ImportIsolation) -> None:
    """Make this process of a wrapper the rank, because it imports torch. Its children inherit nothing of that."""
    forget_start(directory)
    forget_wrapper()
    forget_preload()
    _try_to_prepare(isolation, wrapped=True)


def _try_to_prepare(isolation: ImportIsolation, *, wrapped: bool) -> None:
    try:
        if _is_rank(wrapped=wrapped):
            with isolation:
                prepare_rank(isolation)
    except TaskdError as error:  # such as an agent that has ended
        logger.warning("taskd cannot prepare this process: %s; the script runs without recovery", error)
    except Exception:
        logger.exception("taskd could not prepare this process; the script runs without recovery")


def _restore_limit() -> None:
    """Restore the descriptor limit that the agent found: the agent may have raised its own, not the script's."""
    limit = take_over(DESCRIPTORS)
    if limit is not None:
        with suppress(ValueError, OSError):  # the hard limit has been lowered since
            set_descriptor_limit(limit)


def restore_inherited() -> None:
    """Undo in torchrun the changes that its ranks undo for themselves: it continues without taskd."""
    _restore_limit()
    profile_nccl_no_more()
    if take_over(SIGCHLD_IGNORED):
        ignore_sigchld()


def _is_rank(*, wrapped: bool) -> bool:
    """Return whether torchrun has started this process, or a wrapper whose session it is in.

    A process that a rank starts may have the rank's environment, and is no rank.
    """
    try:
        config = WorkerConfig.from_environment()
    except ConfigError:
        return True  # `prepare_rank` reports the error
    parent = parent_of(os.getsid(0)) if wrapped else os.getppid()
    return config is not None and config.agent_pid == parent


def _be_template(isolation: ImportIsolation) -> None:
    sys.argv.pop()
    with isolation:
        from taskd.adaptors.torchrun.standby import serve, take_rank

        config = TemplateConfig.from_environment()
    become = serve(config)
    take_rank(become)
    with isolation:
        prepare_rank(isolation)


def import_the_machines_own() -> None:
    """Import the machine's own `sitecustomize`, or keep ours: the interpreter expects a module of this name."""
    ours = sys.modules.pop(_MODULE)
    try:
        __import__(_MODULE)
    except ImportError as error:
        if error.name != _MODULE:
            logger.exception("Error in sitecustomize")
    except Exception:
        logger.exception("Error in sitecustomize")
    finally:
        sys.modules.setdefault(_MODULE, ours)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """Report an error that the interpreter shows as it leaves the script. Skip functions that C code calls."""
    if event != "sys.excepthook" or threading.get_ident() != threading.main_thread().ident:
        return
    error, trace = args[2], args[3]
    if isinstance(error, BaseException) and (trace is None or trace.tb_frame.f_back is None):
        _tell(args[0], error)


def _tell(hook: Any, error: BaseException) -> None:
    try:
        told = tell_agent(error, hook)
    except Exception:
        told = False
        logger.exception("taskd could not report what the script ends with")
    if told:
        raise RuntimeError("told in one line")  # documented: an audit hook's RuntimeError keeps `sys.excepthook` quiet
