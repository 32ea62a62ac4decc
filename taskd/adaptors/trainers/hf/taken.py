"""The trainer's counters and other values at a commit, and the way to put them back.

Rules:

1. The values are equal on all ranks, or are those that rank 0 logs: a new process takes a peer's.
2. To take them costs microseconds: a value that only grows (the history of logs, lists of metrics) is taken by its
   length. It is written out when a peer or a copy requests it.
3. The arguments of the step's own log (norm of the gradients, learning rate) are a part of it, for the log behind the
   commit. So are the states of callbacks that can be exported.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

_ITS_OWN: Final = ("is_local_process_zero", "is_world_process_zero", "log_history", "stateful_callbacks")
"""Fields of TrainerState that are not numbers of all ranks."""
_NUMBERS: Final = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_total_train_tokens",  # a counter that TRL's trainers have
)
_METRICS: Final = ("_metrics", "_stored_metrics")
"""Lists by name by mode, of TRL's trainers, which each log empties."""


class HfTaken:
    """The trainer's values, as taken at one commit.

    Args:
        trainer: their owner.
        step: committed steps; -1 for none yet.
        told: the result of `told` for `grad_norm` and `learning_rate`, and the place in its epoch.
    """

    def __init__(self, trainer: Any, step: int, told: Mapping[str, Any]) -> None:
        self.step = step
        self.told = dict(told)
        self._given: dict[str, Any] | None = None
        state = trainer.state
        self._fields = {name: value for name, value in vars(state).items() if name not in _ITS_OWN}
        self._history, self._lines = state.log_history, len(state.log_history)
        self._exported = {name: _listed(one) for name, one in state.stateful_callbacks.items()}
        self._control = dict(vars(trainer.control))
        self._callbacks = [copy.deepcopy(one.state()["attributes"]) for one in exportable(trainer)]
        self._numbers = {name: getattr(trainer, name) for name in _NUMBERS if hasattr(trainer, name)}
        self._metrics = {
            name: {
                mode: {key: (values, len(values)) for key, values in by_name.items()}
                for mode, by_name in getattr(trainer, name).items()
            }
            for name in _METRICS
            if isinstance(getattr(trainer, name, None), dict)
        }
        self._scheduler = _of_scheduler(trainer.lr_scheduler)

    @classmethod
    def given(cls, values: dict[str, Any]) -> "HfTaken":
        """Return the values that a peer or a copy has written out."""
        made = cls.__new__(cls)
        made.step, made.told, made._given = values["step"], values["told"], values
        return made

    def written(self) -> dict[str, Any]:
        """Return all of the values in plain form."""
        if self._given is not None:
            return self._given
        return {
            "step": self.step,
            "told": {name: plain(value) for name, value in self.told.items()},
            "fields": {name: plain(value) for name, value in self._fields.items()},
            "history": self._history[: self._lines],
            "exported": self._exported,
            "control": self._control,
            "callbacks": self._callbacks,
            "numbers": {name: plain(value) for name, value in self._numbers.items()},
            "metrics": {
                name: {
                    mode: {key: [plain(value) for value in values[:count]] for key, (values, count) in by_name.items()}
                    for mode, by_name in modes.items()
                }
                for name, modes in self._metrics.items()
            },
            "scheduler": self._scheduler,
        }

    def put_back(self, trainer: Any) -> None:
        """Set the trainer back to these values."""
        values, state = self.written(), trainer.state
        vars(state).update(values["fields"])
        state.log_history[:] = values["history"]
        state.stateful_callbacks = {name: _listed(one) for name, one in values["exported"].items()}
        vars(trainer.control).update(values["control"])
        for callback, attributes in zip(exportable(trainer), values["callbacks"], strict=True):
            vars(callback).update(attributes)
        for name, value in values["numbers"].items():
            setattr(trainer, name, value)
        for name, modes in values["metrics"].items():
            for mode, by_name in modes.items():
                kept = getattr(trainer, name)[mode]
                kept.clear()
                kept.update({key: [*of_key] for key, of_key in by_name.items()})
        if values["scheduler"] is not None:
            known, rates = values["scheduler"]
            trainer.lr_scheduler.load_state_dict(known)
            for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


def exportable(trainer: Any) -> Iterator[Any]:
    """Yield the callbacks whose state transformers saves too, in their order."""
    for callback in trainer.callback_handler.callbacks:
        if callable(getattr(callback, "state", None)) and callable(getattr(callback, "from_state", None)):
            yield callback


def told(grad_norm: Any, learning_rate: Any) -> dict[str, Any]:
    """Return the values for a step's log. The norm of sharded gradients is summed up, by all ranks together."""
    if hasattr(grad_norm, "full_tensor"):
        grad_norm = grad_norm.full_tensor()
    return {"grad_norm": grad_norm, "learning_rate": learning_rate}


def plain(value: Any) -> Any:
    """Return a tensor of one number as that number, other values as they are."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return value.item() if type(value).__module__ == "numpy" else value


def _listed(one: Any) -> Any:
    return [*one] if isinstance(one, list) else one


def _of_scheduler(scheduler: Any) -> Any:
    """Return the state of transformers' own scheduler that steps with a metric; torch's are parts of the state."""
    if scheduler is None or isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return None
    known = {name: value for name, value in scheduler.state_dict().items() if name != "optimizer"}
    return copy.deepcopy(known), [group["lr"] for group in scheduler.optimizer.param_groups]
