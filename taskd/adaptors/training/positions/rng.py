"""Random number generators of this process: captured after each step in a few microseconds, and restored exactly.

The captured states are buffers. Where a generator's memory is known (see `rng_memory`) they are views of it, which show
the state at the moment of copying. Restoring always uses the public calls.
"""

import contextlib
import importlib
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from taskd.adaptors.training.positions.payload import head_of, pack, unpack
from taskd.adaptors.training.positions.rng_memory import (
    SPARE,
    TORCH_BYTES,
    numpy_views,
    pointer_to,
    python_view,
    torch_mark,
    torch_state,
    torch_view,
)
from taskd.adaptors.training.tree import bytes_of
from taskd.errors import RestoreError
from taskd.runtime.worker.pulse import Buffer, Sources

_WORDS = 624
_GAUSS = struct.Struct("<id")
_MARK = 16
"""Number of first bytes of a twister that enter its mark; python's have the count before the words."""

_NO_GAUSS = _GAUSS.pack(0, 0.0)


class RngCapture:
    """Capture of python's `random`, numpy's global generator if imported, torch's CPU and device ones.

    While every generator is read through views and python has no spare normal number, `capture` returns the same tuple
    each time: in the middle of training each avoided call saves microseconds.
    """

    def __init__(self) -> None:
        self._generator = random._inst
        self._python = python_view(self._generator)
        self._torch = torch_view(torch.default_generator)
        self._numpy: tuple[memoryview, memoryview] | None = None
        self._numpy_bits: object = None
        self._numpy_source: Any = None
        self._same: tuple[Buffer, ...] | None = None

    def capture(self) -> Sequence[Buffer]:
        """Return the states: two buffers of python, two of numpy, one of torch, one of each device that was used."""
        if self._numpy_source is None and "numpy.random" in sys.modules:
            self._find_numpy()
        gauss = self._generator.gauss_next  # type: ignore[attr-defined]
        source = self._numpy_source
        same_numpy = source is None or (self._numpy is not None and source._bit_generator is self._numpy_bits)
        if self._same is not None and gauss is None and same_numpy and not torch.cuda.default_generators:
            return self._same
        states: list[Buffer] = [
            self._python or _python_slow(),
            _NO_GAUSS if gauss is None else _GAUSS.pack(1, gauss),
            *((self._numpy or (b"", b"")) if same_numpy else _numpy_slow()),
            self._torch or bytes_of(torch.default_generator.get_state()),
        ]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states.extend(bytes_of(state) for state in torch.cuda.get_rng_state_all())
        elif gauss is None and same_numpy and self._python and self._torch:
            self._same = tuple(states)
            return self._same
        return states

    def mark(self) -> bytes:
        """Return the mark (`mark_of`) of the present states."""
        return mark_of(self.capture())

    def sources(self) -> Sources | None:
        """Return the sources that `capture` reads, for a `Pulse`; None where memory does not show every generator."""
        if self._numpy_source is None:
            with contextlib.suppress(ImportError):
                importlib.import_module("numpy.random")
                self._find_numpy()
        if self._python is None or self._torch is None or torch.cuda.is_available():
            return None
        pointer = None
        if self._numpy_source is not None:
            pointer = pointer_to(self._numpy_bits, self._numpy_source)
            if pointer is None or self._numpy is None or self._numpy_source._bit_generator is not self._numpy_bits:
                return None
        # A spare normal number that python has at the moment is no obstacle: the pulse checks for it each time.
        found = (self._python, _NO_GAUSS, *(self._numpy or (b"", b"")), self._torch)
        return Sources((head_of(found), *found), pointer, self._generator, "gauss_next")

    def restore(self, states: Sequence[bytes]) -> None:
        """Restore the result of `capture`.

        Raises:
            RestoreError: the states do not fit this python, numpy or torch.
        """
        try:
            python, gauss, numpy, spare, cpu, *devices = states
            _restore_python(python, gauss)
            if numpy:
                _restore_numpy(numpy, spare)
            torch.default_generator.set_state(_tensor(torch_state(cpu) if len(cpu) == TORCH_BYTES else cpu))
            for index, state in enumerate(devices):
                torch.cuda.set_rng_state(_tensor(state), index)
        except (ImportError, RuntimeError, ValueError, TypeError, struct.error) as error:
            raise RestoreError(
                f"a random number state cannot be put back: {error}; use one python, numpy and torch on all nodes"
            ) from error

    def _find_numpy(self) -> None:
        from numpy.random import mtrand

        self._same = None
        source: Any = mtrand._rand
        self._numpy_source, self._numpy_bits = source, source._bit_generator
        if type(self._numpy_bits).__name__ == "MT19937":
            self._numpy = numpy_views(source)


def mark_of(states: Sequence[Buffer]) -> bytes:
    """Return a few bytes that change as soon as a generator draws; equal states have equal bytes.

    A twister counts each number that it gives, and has other words once it has given all that were there.
    """
    python, gauss, numpy, spare, cpu, *devices = states
    return b"".join((python[:_MARK], gauss, numpy[:_MARK], numpy[-4:], spare[:4], *torch_mark(cpu), *devices))


def is_just_seeded() -> bool:
    """Return whether torch's generator has drawn nothing since it was seeded."""
    generator = torch.default_generator
    fresh = torch.Generator().manual_seed(generator.initial_seed())
    return torch.equal(generator.get_state(), fresh.get_state())


class PackedRng:
    """Generators of this process, whose states are one value that can be kept and recorded."""

    def __init__(self) -> None:
        self._rng = RngCapture()

    def capture(self) -> bytes:
        """Return the present states, as one value."""
        return pack(self._rng.capture())

    def mark(self) -> bytes:
        """Return the mark of the present states."""
        return self._rng.mark()

    def mark_of(self, states: bytes) -> bytes:
        """Return the mark of states that `capture` returned."""
        return mark_of(unpack(states)[0])

    def restore(self, states: bytes) -> None:
        """Restore the result of `capture`. Raise `RestoreError` if it cannot be read or restored."""
        try:
            found = unpack(states)[0]
        except (struct.error, msgspec.DecodeError) as error:
            raise RestoreError(f"random number states of {len(states)} bytes cannot be read: {error}") from error
        self._rng.restore(found)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _python_slow() -> bytes:
    _, words, _ = random.getstate()
    return struct.pack(f"<I{_WORDS}I", words[-1], *words[:-1])


def _restore_python(state: bytes, gauss: bytes) -> None:
    index, *words = struct.unpack(f"<I{_WORDS}I", state)
    has_spare, spare = _GAUSS.unpack(gauss)
    random.setstate((3, (*words, index), spare if has_spare else None))


def _restore_numpy(state: bytes, spare: bytes) -> None:
    import numpy

    *words, index = struct.unpack(f"<{_WORDS}Ii", state)
    if not 0 <= index <= _WORDS:
        raise ValueError(f"numpy's position {index} is outside of its state")  # numpy would read beyond it
    has_spare, value = SPARE.unpack(spare)
    numpy.random.set_state(("MT19937", numpy.array(words, dtype=numpy.uint32), index, has_spare, value))


def _numpy_slow() -> tuple[bytes, bytes]:
    import numpy

    state: Any = numpy.random.get_state(legacy=True)
    name, words, index, has_spare, spare = state
    if name != "MT19937":  # the script has put another bit generator under numpy's global functions
        return b"", b""
    return bytes(words.tobytes()) + struct.pack("<i", index), SPARE.pack(has_spare, spare)
