"""A few steps of every kind of parallel training, under torchrun: rank 0 prints each rank's results, by kind.

It runs without knowledge of taskd: its output under stock torchrun is the reference. Four ranks, gloo. An error is a
result, too: kinds that this torch does not offer on a CPU end alike in both.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.sharded import kinds_of_collectives, kinds_of_fsdp1, kinds_of_groups, kinds_of_models  # noqa: F401 - they enter themselves
from tests.sharded.kinds import KINDS


def pieces(value: object) -> "Iterable[bytes]":
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        yield str(value.dtype).encode() + str(tuple(value.shape)).encode()
        yield value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from pieces(item)
    else:
        yield repr(value).encode()


def result(function: Callable[[], object]) -> str:
    try:
        return hashlib.sha256(b"".join(pieces(function()))).hexdigest()[:16]
    except Exception as error:  # noqa: BLE001 - what a kind raises is what is compared
        return f"{type(error).__name__}: {str(error)[:300]}"


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    chosen = [word for word in sys.argv[1:] if word in KINDS] or list(KINDS)
    for name in chosen:
        mine = result(KINDS[name])
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        if dist.get_rank() == 0:
            print(json.dumps({"kind": name, "ranks": everyone}), flush=True)
    dist.destroy_process_group()


main()
