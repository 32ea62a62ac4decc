"""Ranks that are forks of this process: `ranks.py SIZE PROGRAM ARGUMENT…`.

{rank} stands for the rank of each, also as the whole value of a variable. Imports of torch and of the first step are
most of a rank's cost, and forks share them. The last line lists the exit statuses.
"""

import json
import os
import runpy
import sys

import torch._dynamo
import torch.distributed.checkpoint  # noqa: F401

import tests.training.checkpoint_state  # noqa: F401

size, program, *arguments = sys.argv[1:]
assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
children = []
for rank in range(int(size)):
    children.append(os.fork())
    if not children[-1]:
        os.environ.update({name: str(rank) for name, value in os.environ.items() if value == "{rank}"})
        sys.argv = [program, *(word.replace("{rank}", str(rank)) for word in arguments)]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
