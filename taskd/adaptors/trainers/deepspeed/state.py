"""The training state of a DeepSpeed engine."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from taskd.adaptors.trainers.deepspeed.kinds import stage_kind, unfit
from taskd.adaptors.trainers.deepspeed.loaders import place_of
from taskd.adaptors.trainers.deepspeed.own_states import EngineState, ModuleState
from taskd.adaptors.trainers.deepspeed.saving import write_latest_last
from taskd.adaptors.trainers.deepspeed.seams import SEAMS
from taskd.adaptors.trainers.deepspeed.stepping import EngineStep
from taskd.adaptors.trainers.library import fits
from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.adaptors.training.sharding.own_state import tell
from taskd.adaptors.training.state import TrainState

_log = logging.getLogger(__name__)


class DeepSpeedState(TrainState):
    """A `TrainState` whose steps are an engine's: made by `taskd.deepspeed.state`."""

    def __init__(
        self,
        engine: Any,
        own: tuple[ModuleState, EngineState] | None = None,
        places: Sequence[PlainPlace] = (),
        **parts: Any,
    ) -> None:
        self._engine = engine
        self._own = own
        self._seen = engine.global_steps
        self._places = places
        super().__init__(**parts)
        self.step = engine.global_steps

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """Commit as a `TrainState` does, if the engine has changed the weights since the last commit; else do nothing.

        So the call follows every `engine.step()`, whether or not that is the last one of accumulated micro-batches.
        """
        now = self._engine.global_steps
        if now != self._seen if self._own is None else self._own[1].due:
            self._seen = now
            super().commit(loss)
            for place in self._places:
                place.committed()


def state(engine: Any, loader: Any = None, data: dict[str, Any] | None = None, **parts: Any) -> DeepSpeedState:
    """Return the state of an engine, as `taskd.deepspeed.state`."""
    if loader is not None:
        place = place_of(loader)
        parts["places"], data = (place,), {"loader": place, **(data or {})}
    parts["data"] = data
    if not fits("deepspeed", SEAMS):
        return _unrecovered(engine, parts)
    if why := unfit(engine):
        _log.warning("this DeepSpeed engine trains as it is, and at a fault all processes start anew: %s", why)
        return _unrecovered(engine, parts)
    kind = stage_kind(engine)
    assert kind is not None
    stage = kind(engine)
    step = EngineStep(engine, stage.masters())
    write_latest_last(engine)
    own = ModuleState(stage), EngineState(engine, stage, step)
    tell(engine.module, own[0])
    tell(step, own[1])
    return DeepSpeedState(engine, own, model=engine.module, optimizer=step, **parts)


def _unrecovered(engine: Any, parts: dict[str, Any]) -> DeepSpeedState:
    return DeepSpeedState(engine, model=engine.module, optimizer=engine.basic_optimizer, **parts)
