"""A script that joins all threads but its own before it ends, as frameworks do."""

import sys
import threading

if "torch" in sys.argv:
    import torch.distributed  # noqa: F401

helper = threading.Thread(target=sys.stdout.write, args=("helped\n",), name="helper")
helper.start()
mine = threading.current_thread()
for thread in threading.enumerate():
    if thread is not mine:
        thread.join()
sys.stdout.write(f"left: {[thread.name for thread in threading.enumerate()]} {threading.active_count()}\n")
