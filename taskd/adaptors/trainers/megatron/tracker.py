"""The named random number states of Megatron's tracker, from which layers that are cut draw: this rank's own.

The default generators are recorded by taskd as they are for every script.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch


def rng_tracker() -> Any:
    """The one of this process."""
    return importlib.import_module("megatron.core.tensor_parallel.random").get_cuda_rng_tracker()


class TrackerStates:
    """A place in the data, for a `TrainState`: what is drawn next from each name."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def state_dict(self) -> dict[str, Any]:
        """The state of each name."""
        return {name: _state_of(state) for name, state in self._tracker.get_states().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Put them back."""
        own = self._tracker.get_states()
        for name, state in states.items():
            if isinstance(own.get(name), torch.Generator):
                own[name].set_state(state)
            else:
                own[name] = state.clone()
        self._tracker.set_states(own)
        self._tracker._current_state_name = "default-rng"


def _state_of(state: Any) -> torch.Tensor:
    """With graphs a state is a generator."""
    found: torch.Tensor = state.get_state() if isinstance(state, torch.Generator) else state
    return found
