"""torch's dynamic rendezvous while taskd decides on membership: no node waits in it, and none waits for it.

Rules:

1. torch restarts all ranks of a living job when a node waits in the rendezvous. While taskd leads, torchrun finds no
   node there, and nothing queries it. The node that keeps the list may be lost, and the query would end torchrun.
2. For the same reason a lost store is reported once, and the wait for its end is limited.
3. A node that goes past the rendezvous removes its name from it. Should torchrun's own behaviour come back, the others
   would otherwise restart for it, or count on it in their next round.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _Action,
    _RendezvousKeepAliveOp,
)

logger = logging.getLogger(__name__)

_WITHDRAW_S: Final = 5.0
_SHUTDOWN_S: Final = 3.0
_KEEP_ALIVE_S: Final = 5.0
"""Limit of a keep-alive in seconds, which is torch's own."""


def set_aside(handler: RendezvousHandler, leads: Callable[[], bool]) -> None:
    """Patch `handler`: while `leads` is true, it reports no waiting node, and nothing waits for its end."""
    aside = _Aside(handler, leads)
    vars(handler).update(num_nodes_waiting=aside.num_nodes_waiting, shutdown=aside.shutdown)
    if isinstance(handler, DynamicRendezvousHandler):
        vars(handler)["_keep_alive"] = aside.keep_alive


class _Aside:
    """Replacements for a handler's methods."""

    def __init__(self, handler: Any, leads: Callable[[], bool]) -> None:
        self._handler = handler
        self._leads = leads
        self._count, self._shutdown = handler.num_nodes_waiting, handler.shutdown
        self._keep_alive = getattr(handler, "_keep_alive", None)
        self._lost = False

    def _in_charge(self) -> bool:
        try:
            return self._leads()
        except SignalException:
            raise  # a signal ends torchrun
        except Exception:
            logger.exception("taskd failed when torchrun asked its rendezvous; torchrun goes on with its own behaviour")
            self._leads = lambda: False
            return False

    def num_nodes_waiting(self) -> int:
        return 0 if self._in_charge() else int(self._count())

    def keep_alive(self) -> None:
        """Keep this node alive in the rendezvous, as torch's timer requests. Report a lost store once.

        torch would complain about it every few seconds, to the end of the job.
        """
        if not self._in_charge():
            self._lost = False
            if self._keep_alive is not None:
                self._keep_alive()
        elif not self._lost:
            try:
                self._ask()
            except RendezvousError as error:
                self._lost = True
                logger.warning("torch's rendezvous is lost (%s); the job goes on without it", error)

    def _ask(self) -> None:
        with self._handler._heartbeat_lock:
            self._handler._op_executor.run(_RendezvousKeepAliveOp(), time.monotonic() + _KEEP_ALIVE_S)

    def shutdown(self) -> bool:
        if not self._in_charge():
            return bool(self._shutdown())
        if self._lost:
            return False
        thread = threading.Thread(target=self._close, name="taskd-rendezvous-end", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.info("torch's rendezvous is left open: no thread can be had (%s)", error)
            return False
        thread.join(_SHUTDOWN_S)
        if thread.is_alive():
            logger.info("torch's rendezvous does not answer within %g s: it is left open", _SHUTDOWN_S)
        return not thread.is_alive()

    def _close(self) -> None:
        try:
            if isinstance(self._handler, DynamicRendezvousHandler):
                self._ask()  # a node that left the list sends no heartbeat: torch would complain of a lost store here
            self._shutdown()
        except Exception as error:  # noqa: BLE001 - the job has ended: no fault of its rendezvous counts any more
            logger.info("torch's rendezvous could not be closed: %s", error)


def withdraw(handler: RendezvousHandler, rendezvous: threading.Thread) -> None:
    """End the rendezvous that `rendezvous` runs, or has run, and take this node out of it. Does not block.

    Does nothing to a rendezvous that keeps no list, such as the static one.
    """
    if not isinstance(handler, DynamicRendezvousHandler):
        return
    vars(handler._state_holder)["sync"] = _stop  # the thread calls this next, within a second
    thread = threading.Thread(target=_leave, args=(handler, rendezvous), name="taskd-withdraw", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.info("this node's name stays in torch's rendezvous until it expires: no thread can be had (%s)", error)


def _stop() -> NoReturn:
    raise RendezvousError("this node goes past the rendezvous: the job trains already")


def _leave(handler: DynamicRendezvousHandler, rendezvous: threading.Thread) -> None:
    rendezvous.join()
    del vars(handler._state_holder)["sync"]
    try:
        handler._stop_heartbeats()
        handler._op_executor.run(_next_removal, time.monotonic() + _WITHDRAW_S)
    except RendezvousError as error:
        logger.info("this node's name stays in torch's rendezvous until it expires there: %s", error)


def _next_removal(context: Any, deadline_s: float) -> _Action:
    """Return the next operation of torch's state machine: removal from every list, then the end."""
    state = context.state
    lists = (
        (state.participants, _Action.REMOVE_FROM_PARTICIPANTS),
        (state.wait_list, _Action.REMOVE_FROM_WAIT_LIST),
        (state.redundancy_list, _Action.REMOVE_FROM_REDUNDANCY_LIST),
    )
    removal = next((action for members, action in lists if context.node in members), _Action.FINISH)
    late = removal is not _Action.FINISH and time.monotonic() > deadline_s
    return _Action.ERROR_TIMEOUT if late else removal
