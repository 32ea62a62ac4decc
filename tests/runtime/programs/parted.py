"""A process whose main thread ends by itself; another thread reports this and stays."""

import ctypes
import os
import threading
import time
from pathlib import Path


def stay() -> None:
    while Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print("alone", flush=True)
    time.sleep(60)


threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
