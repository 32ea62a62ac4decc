"""The named random number states of Megatron's tracker, from which layers that are cut draw: this rank's own.

taskd records the default generators as for every script.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.positions.packed import PackedPosition


def rng_tracker() -> Any:
    """Return the tracker of this process."""
    return importlib.import_module("megatron.core.tensor_parallel.random").get_cuda_rng_tracker()


class TrackerStates(PackedPosition):
    """The next draw of each name, as a place in the data for a `TrainState`.

    The tracker never changes a state that is a tensor: drawing puts another one in its place.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._known: dict[str, Any] = {}
        self._packed = b""

    def pack(self) -> bytes:
        """Return the state of each name."""
        states = self._tracker.get_states()
        if not self._packed or not self._knows(states):
            self._known = dict(states)
            self._packed = tree.pack({name: _state_of(state) for name, state in states.items()})
        return self._packed

    def unpack(self, data: bytes) -> None:
        """Put the states back."""
        own = self._tracker.get_states()
        for name, state in tree.unpack(data).items():
            if isinstance(own.get(name), torch.Generator):
                own[name].set_state(state)
            else:
                own[name] = state.clone()
        self._tracker.set_states(own)
        self._tracker._current_state_name = "default-rng"

    def _knows(self, states: Mapping[str, Any]) -> bool:
        known = self._known
        return len(states) == len(known) and all(
            state is known.get(name) and isinstance(state, torch.Tensor) for name, state in states.items()
        )


def _state_of(state: Any) -> torch.Tensor:
    """Return the state as a tensor: with graphs it is a generator."""
    found: torch.Tensor = state.get_state() if isinstance(state, torch.Generator) else state
    return found
