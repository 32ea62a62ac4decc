"""Serving a job's manager in this process: the code that `start_taskd_manager` and `taskd manager` share.

Rules:

1. SIGTERM and SIGINT end the manager cleanly. They are handled before it listens. An ignored signal (SIGINT, in a job
   behind `&`) stays ignored.
2. A manager of several nodes logs a warning if only its own machine reaches it.
3. If logging is not configured, taskd's own records go to stderr, so no error is lost.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskd.config.address import Address
from taskd.config.manager import ManagerConfig

logger = logging.getLogger(__name__)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(config: ManagerConfig, stop: threading.Event, announce: Callable[[Address], None]) -> None:
    """Serve the job until it ends or `stop` is set.

    `announce` is called with the manager's address, once the manager listens. Raises `TaskdError`.
    """
    from taskd.runtime.manager.manager import Manager
    from taskd.runtime.system.descriptors import raise_descriptor_limit

    raise_descriptor_limit()
    manager = Manager(config, stop=stop)
    announce(manager.address)
    if config.policy.node_count > 1 and manager.address.is_loopback:
        logger.warning(
            "only this machine reaches %s, and the job has %d nodes: for nodes elsewhere give a secret (TASKD_SECRET "
            "or TASKD_SECRET_FILE, the same on every node), and name no host to listen on",
            manager.address,
            config.policy.node_count,
        )
    manager.run()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Hold a context in which SIGTERM and SIGINT call `stop`, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_records_visible() -> None:
    """Log taskd's records to stderr, unless a handler receives them already."""
    ours = logging.getLogger("taskd")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("taskd %(levelname)s %(asctime)s %(message)s"))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
