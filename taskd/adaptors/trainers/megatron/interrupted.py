"""Megatron's remains of an interrupted step: reductions under way, counts of gradients, timers that run.

Rules:

1. Afterwards every rank, a new process too, is as before its first iteration. A bucket group that has seen an iteration
   starts its reduction in the backward pass, in the order in which gradients come. One that has not starts it in
   `finish_grad_sync`, in the order of the groups. Ranks that differ there would reduce different buckets together.
2. Communication under way ends, with an error, before anything else is written to the same memory.
3. Gradients need nothing: each iteration starts with `zero_grad_buffer()`.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from taskd.adaptors.groups.settling import settle
from taskd.errors import RestoreError

_LIMIT_S: Final = 5.0


def bucket_groups(chunk: Any) -> Iterator[Any]:
    """Yield all bucket groups of one `DistributedDataParallel`."""
    yield from chunk.bucket_groups
    yield from chunk.expert_parallel_bucket_groups


def drop_communication(chunks: Iterable[Any]) -> None:
    """Forget the reductions and gathers of these chunks of the model.

    Raises:
        RestoreError: one may still be under way.
    """
    groups = [group for chunk in chunks for group in bucket_groups(chunk)]
    under_way = any(group.grad_reduce_handle is not None or group.param_gather_handle is not None for group in groups)
    if under_way and not settle(_LIMIT_S):
        raise RestoreError(
            f"a reduction or gather of Megatron's, of the step that was interrupted, has not ended in {_LIMIT_S:g} s; "
            "expected that it fails as its group is broken"
        )
    for group in groups:
        group.grad_reduce_handle = group.param_gather_handle = None
        group.param_gather_dispatched = False
        group.is_first_batch = group.is_last_microbatch = True
        group.per_param_grad_ready_counts = {}
        group.golden_per_param_grad_ready_counts = {}


def gather_parameters(chunks: Iterable[Any]) -> None:
    """Make all data-parallel ranks exchange their shards of the parameters. Collective."""
    for chunk in chunks:
        chunk.start_param_sync(force_sync=True)
        for group in bucket_groups(chunk):
            group.param_gather_dispatched = False  # with overlapped gathers, the next pass requests it again


def stop_timers(configs: Iterable[Any]) -> None:
    """Mark Megatron's timers as stopped: they refuse to be started twice."""
    for timers in {id(timers): timers for config in configs if (timers := getattr(config, "timers", None))}.values():
        for timer in getattr(timers, "_timers", {}).values():
            timer._started = False


def rerun_machine() -> Any:
    """Return the rerun machine of this process, None if nothing has requested it."""
    return getattr(sys.modules.get("megatron.core.rerun_state_machine"), "_GLOBAL_RERUN_STATE_MACHINE", None)


def begin_rerun_again() -> None:
    """Let the machine start the step again: else it would take the next query for the interrupted step's end."""
    machine = rerun_machine()
    if machine is None:
        return
    begun = type(machine.state).NOT_RUNNING_YET
    if machine.state is not begun:
        machine.state = begun
        machine.current_iteration -= 1
