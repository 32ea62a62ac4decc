"""Disposition of SIGCHLD. While a process ignores it, the kernel discards the exit statuses of its children."""

import signal
import threading


def stop_ignoring_sigchld() -> bool:
    """Restore the default disposition if this process ignores SIGCHLD. Return whether it did.

    Only the main thread can set a disposition: in another thread nothing changes, and the result is False.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True


def ignore_sigchld() -> None:
    """Ignore SIGCHLD."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
