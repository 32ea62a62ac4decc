"""Whether the kernel keeps how the children of this process have ended."""

import signal
import threading


def keep_endings() -> bool:
    """Have it keep them, if SIGCHLD is ignored as whoever started this process has left it; whether it was.

    A signal's handler is set by the main thread alone. In another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True


def ignore_children() -> None:
    """Ignore SIGCHLD: the kernel forgets children as they end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
