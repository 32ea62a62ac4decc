"""Prints whether each of these modules is the user's: `shadowed.py [torch] NAME…`. With `torch`, it trains before.

It imports only modules of which the user cannot have one.
"""

import importlib
import sys

names = sys.argv[1:]
if names[0] == "torch":
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    print("sum", one.item())
    dist.destroy_process_group()
    del names[0]
print({name: getattr(importlib.import_module(name), "USERS", None) for name in names})
