"""Named moments in the middle of torch's own collectives: the peers are inside them, or about to be."""

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp
from torch.distributed.optim import ZeroRedundancyOptimizer


def in_the_middle(moment: Callable[[str], None]) -> None:
    """Call `moment` when a gather or a reduction of FSDP2, or a broadcast of ZeRO-1, has begun.

    Call it also before a functional all-reduce.
    """
    _after(fsdp, "foreach_all_gather", lambda: moment("in an all-gather"))
    _after(fsdp, "foreach_reduce", lambda: moment("in a reduction"))
    _before(functional, "all_reduce", lambda: moment("before an all-reduce"))
    _after(ZeroRedundancyOptimizer, "_broadcast_params_from_rank", lambda: moment("in the sync"))


def _after(owner: Any, name: str, call: Callable[[], None]) -> None:
    torchs = getattr(owner, name)

    @functools.wraps(torchs)
    def begun(*args: Any, **options: Any) -> Any:
        result = torchs(*args, **options)
        call()
        return result

    setattr(owner, name, begun)


def _before(module: Any, name: str, call: Callable[[], None]) -> None:
    torchs = getattr(module, name)

    @functools.wraps(torchs)
    def begins(*args: Any, **options: Any) -> Any:
        call()
        return torchs(*args, **options)

    setattr(module, name, begins)
