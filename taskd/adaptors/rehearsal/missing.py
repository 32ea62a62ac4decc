"""The parts of a training without a `TrainState`, under the script's own names: they would be the state's parts."""

import sys
from types import FrameType
from typing import Any, Final

import torch

from taskd.adaptors.rehearsal.variables import script_frames

_TRAINERS: Final = tuple(
    f"taskd.{name}" for name in ("hf", "lightning", "accelerate", "titan", "deepspeed", "megatron", "ray")
)
"""Public modules by which a trainer's training is protected. Outside a job of taskd's they make no state."""


def trainers_door() -> str:
    """Return the first trainer module of taskd's that this process has imported, "" for none."""
    return next((name for name in _TRAINERS if name in sys.modules), "")


def trains_with(frame: FrameType) -> dict[str, Any]:
    """Return the names under which a script holds the parts of a TrainState, and the place of its steps."""
    kinds: dict[str, str] = {}
    seen: set[int] = set()
    names = {**frame.f_globals}
    frames = list(script_frames(frame))
    for outer in reversed(frames):
        names.update(outer.f_locals)
    for name, value in names.items():
        kind = _kind(value)
        if kind and not name.startswith("_") and id(value) not in seen:
            seen.add(id(value))
            kinds[name] = kind
    lines = [f"{one.f_code.co_filename}:{one.f_lineno}" for one in frames]
    function = frame.f_code
    begins = f"{function.co_filename}:{function.co_firstlineno}"
    return {"kinds": kinds, "line": lines[0], "function": function.co_name, "begins": begins}


def _kind(value: Any) -> str:
    wrapped = torch.nn.parallel.DistributedDataParallel
    pairs: tuple[tuple[Any, str], ...] = (
        (wrapped, "wrapper"),
        (torch.nn.Module, "model"),
        (torch.optim.Optimizer, "optimizer"),
        (torch.optim.lr_scheduler.LRScheduler, "scheduler"),
        (torch.amp.GradScaler, "scaler"),
        (torch.utils.data.DataLoader, "loader"),
    )
    return next((kind for one, kind in pairs if isinstance(value, one)), "")
