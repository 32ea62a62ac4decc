"""Values of an interrupted step in `torch.distributed.pipelining`: chunks, losses, and agreements of the stages.

Rules:

1. In its first step a schedule makes all stages vote, and exchange messages to infer the shapes of their inputs. A
   survivor would skip that and meet a new process that does it. So all ranks do it again.
2. It runs the stages once, on memory with any content. Buffers that this changes are restored afterwards, because the
   undisturbed run has no such pass at that point. Its first step has one, so in that step the buffers are not restored.
3. A stage's group is a handle, and is kept.

Source of the method: torch 2.6, 2.9, 2.12, 2.13 and 2.15, `torch/distributed/pipelining`.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from taskd.adaptors.groups.instances import imported, instances
from taskd.adaptors.training.parts.parts import Parts
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

_STAGE: Final = ("torch.distributed.pipelining.stage", "_PipelineStageBase")
_SCHEDULE: Final = ("torch.distributed.pipelining.schedules", "_PipelineSchedule")
_AGREED: Final = tuple(
    f"{of}{what}_initialized" for of in ("_stage", "_stages") for what in ("", "_forward", "_backward")
)
_CHUNKS: Final = ("fwd_cache", "bwd_cache", "backward_state", "dw_runner")


def stages() -> list[Any]:
    """Return the stages of this process."""
    return _living(*_STAGE)


def stages_of(parts: Parts) -> list[Any]:
    """Return the stages of a state. Any other stage was dropped by the script, or is refused."""
    known = {id(parameter) for module in parts.modules for parameter in module.parameters()}
    found = []
    for stage in stages():
        own = [id(parameter) for parameter in stage.submod.parameters()]
        if not own or not known.isdisjoint(own):
            found.append(stage)
    return found


def drop_step(is_first: Callable[[], bool]) -> None:
    """Drop the present step of this process's schedules, and the agreements of their stages.

    `is_first` is called as they agree again; it returns whether that is in the first step of the training.
    """
    for stage in stages():
        stage.clear_runtime_states()
        for name in _CHUNKS:
            getattr(stage, name, {}).clear()
    for schedule in _living(*_SCHEDULE):
        schedule._internal_losses.clear()
        for name in _AGREED:
            if hasattr(schedule, name):
                setattr(schedule, name, False)
        _keep_buffers(schedule, is_first)


def _keep_buffers(schedule: Any, is_first: Callable[[], bool]) -> None:
    """Restore the stages' buffers once, when the stages agree again."""
    name = "_initialize_stages" if hasattr(schedule, "_stages") else "_initialize_stage"
    if name in vars(schedule):
        delattr(schedule, name)  # the stages have not agreed since the fault before

    def agree_once(*_: Any, **__: Any) -> Steps:
        own = schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]
        buffers = [buffer for stage in own for buffer in stage.submod.buffers()]
        saved = [buffer.clone() for buffer in buffers]
        delattr(schedule, name)
        agreed = yield ORIGINAL
        if is_first():
            return agreed
        with torch.no_grad():
            for buffer, content in zip(buffers, saved, strict=True):
                buffer.copy_(content)
        return agreed

    setattr(schedule, name, around(getattr(schedule, name), agree_once))


def _living(module: str, name: str) -> list[Any]:
    kind = imported(module, name)
    return instances(kind) if kind is not None else []
