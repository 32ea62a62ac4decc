"""Reads the training functions of scripts: each set up in a process of its own, as rank 0, without its peers.

    python read_scripts.py SCRIPT:RANKS…

Prints the findings of each, as JSON. A script that enters no training function is left out.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn import datasets
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchdata import stateful_dataloader

import taskd
from taskd.adaptors.training.proof.reading import read_function

IMPORTED = datasets, stateful_dataloader
"""Many of the scripts import these: once is enough."""


def resilient(state: Any) -> Any:
    """Replace taskd's own decorator: read the function and end the process."""

    def decorate(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            found = [f"{Path(one.line).name}: {one.text}" for one in read_function(function, (args, kwargs), state)]
            os.write(int(os.environ["READ_TO"]), json.dumps(found).encode())
            os._exit(0)

        return run

    return decorate


def set_up(script: Path, ranks: int) -> None:
    """Run a script to its training function."""
    init = dist.init_process_group
    dist.init_process_group = lambda *_, **__: init("fake", store=FakeStore(), rank=0, world_size=ranks)
    vars(taskd)["resilient"] = resilient
    os.environ.update(RANK="0", WORLD_SIZE=str(ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(ranks))
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def read(script: Path, ranks: int) -> Any:
    """Return the findings in a script; None if it enters no training function."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.environ["READ_TO"] = str(writing)
        os.dup2(2, 1)
        if "resilient" not in script.read_text():
            os._exit(0)
        try:
            set_up(script, ranks)
        except BaseException:  # noqa: BLE001 - the script's own errors
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


torch.set_num_threads(1)
torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())  # imports the modules that each script would import
gc.freeze()  # a state searches the objects that its script has made
given = [argument.partition(":") for argument in sys.argv[1:]]
read_all = {Path(name).stem: read(Path(name), int(ranks)) for name, _, ranks in given}
print(json.dumps({name: found for name, found in read_all.items() if found is not None}))
