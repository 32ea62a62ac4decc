"""A script that blocks SIGTERM while it writes, and is sent one then."""

import os
import signal
import sys
import time

handled: list[str] = []
where = "before"


def on_term(_number: int, _frame: object) -> None:
    handled.append(where)


signal.signal(signal.SIGTERM, on_term)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
where = "in the section"
os.kill(os.getpid(), signal.SIGTERM)
end_s = time.monotonic() + 0.3
while time.monotonic() < end_s:  # a handler would run between two lines
    pass
where = "after it"
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
sys.stdout.write(f"handled {handled}\n")
