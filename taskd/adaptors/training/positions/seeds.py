"""Random numbers as a function of the job's seed, a stream and the step: any node can draw them again.

Rules:

1. At the beginning of each step every generator of the process is seeded anew: python's `random`, numpy's global one if
   it is imported, torch's CPU one, and that of the present accelerator once it is in use.
2. The stream is the rank in the job, or the share of the global batch while that is worked at. At full size both are
   the same number.
3. The mixer is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). Its
   state is one number. Each stream begins at its own, mixed, place of the cycle, and each step takes two outputs.
4. torch's CPU generator and numpy's expand 32 bits by the same recipe. So they never get the same 32 bits.
"""

import importlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from taskd.adaptors.training.positions.payload import head_of
from taskd.errors import ConfigError
from taskd.runtime.worker.pulse import Buffer, Sources

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Seeds:
    """Seeding of this process's generators, in place of an `RngCapture`. It captures nothing.

    Raises:
        ConfigError: the seed is no integer of 64 bits.
    """

    def __init__(self, seed: int) -> None:
        if type(seed) is not int or not 0 <= seed <= _MASK:
            raise ConfigError(f"TrainState got seed={seed!r}, expected an integer from 0 to 2**64 - 1; correct it")
        self._root = mix(seed)
        self._stream = -1
        self._start = 0
        self._numpy: Any = None
        self._accelerator: Any = _accelerator()

    def sow(self, stream: int, step: int) -> None:
        """Seed every generator for the step that follows `step` committed ones."""
        if stream != self._stream:
            self._stream, self._start = stream, mix((self._root + (stream + 1) * _GOLDEN) & _MASK)
        place = self._start + 2 * step * _GOLDEN
        first, second = mix((place + _GOLDEN) & _MASK), mix((place + 2 * _GOLDEN) & _MASK)
        torch.default_generator.manual_seed(first)
        random.seed(second)
        if self._numpy is None and "numpy" in sys.modules:
            self._numpy = importlib.import_module("numpy.random")  # numpy itself imports it only when it is used
        if self._numpy is not None:
            self._numpy.seed(first >> 32)
        if self._accelerator is not None and self._accelerator.is_initialized():
            self._accelerator.manual_seed(first)

    def capture(self) -> Sequence[Buffer]:
        """Return nothing: a step's numbers can be drawn again from its number."""
        return ()

    def sources(self) -> Sources:
        """Return the sources that `capture` reads, for a `Pulse`."""
        return Sources((head_of(()),), None, None, "")

    def restore(self, states: Sequence[bytes]) -> None:
        """Do nothing: `sow` restores a step's numbers."""


def mix(number: int) -> int:
    """Apply the output function of SplitMix64: 64 bits to 64 bits, one to one."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def _accelerator() -> Any:
    """Return the module of this machine's accelerator, if it can be seeded and reports whether it is in use."""
    if not hasattr(torch, "accelerator") or not torch.accelerator.is_available():
        return None
    module: Any = torch.get_device_module(torch.accelerator.current_accelerator())
    return module if hasattr(module, "is_initialized") and hasattr(module, "manual_seed") else None
