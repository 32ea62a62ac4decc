"""A store in a process of its own, which prints its port."""

import sys

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("port", store.port, flush=True)
sys.stdin.read()
