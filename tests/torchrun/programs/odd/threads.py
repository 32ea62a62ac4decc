"""A script that joins all threads but its own before it ends, as frameworks do."""

import sys
import threading

if "torch" in sys.argv:
    import torch.distributed  # noqa: F401

helper = threading.Thread(target=print, args=("helped",), name="helper")
helper.start()
mine = threading.current_thread()
for thread in threading.enumerate():
    if thread is not mine:
        thread.join()
print("left:", [thread.name for thread in threading.enumerate()], threading.active_count(), flush=True)
