"""The random number generators of this process: captured after each step in a few microseconds, and put back exactly.

Python's and numpy's own calls to read their state take 15 and 50 us, so their memory is read instead: both keep a
Mersenne twister of 2,500 bytes at an address that can be known. Once per process it is checked against the public call
that it lies where we think; where it does not, the public call is used. Restoring always goes through the public calls.
"""

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

from taskd.errors import RestoreError

_WORDS = 624
_TWISTER_BYTES = (_WORDS + 1) * 4
_GAUSS = struct.Struct("<id")


class RngCapture:
    """Reads and restores python's `random`, numpy's global generator if imported, torch's CPU and device ones."""

    def __init__(self) -> None:
        self._python_address = _python_address(random._inst)
        self._numpy: Callable[[], bytes] | None = None
        self._cpu = torch.default_generator

    def capture(self) -> list[bytes]:
        """Return the state of each generator: python, numpy, torch CPU, and one for each device that was used."""
        if self._numpy is None and "numpy.random" in sys.modules:
            self._numpy = _numpy_reader()
        states = [
            self._python(),
            b"" if self._numpy is None else self._numpy(),
            self._cpu.get_state().numpy().tobytes(),
        ]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states.extend(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())
        return states

    def restore(self, states: list[bytes]) -> None:
        """Put back what `capture` returned.

        Raises:
            RestoreError: the states are not of this python, numpy or torch.
        """
        python, numpy, cpu, *devices = states
        try:
            _restore_python(python)
            if numpy:
                _restore_numpy(numpy)
            self._cpu.set_state(_tensor(cpu))
            for index, state in enumerate(devices):
                torch.cuda.set_rng_state(_tensor(state), index)
        except (RuntimeError, ValueError, TypeError, struct.error) as error:
            raise RestoreError(
                f"a random number state cannot be put back: {error}; use one python and torch on all nodes"
            ) from error

    def _python(self) -> bytes:
        gauss = random._inst.gauss_next  # type: ignore[attr-defined]
        tail = _GAUSS.pack(gauss is not None, 0.0 if gauss is None else gauss)
        if self._python_address is None:
            _, words, _ = random.getstate()
            return struct.pack(f"<I{_WORDS}I", words[-1], *words[:-1]) + tail
        return ctypes.string_at(self._python_address, _TWISTER_BYTES) + tail


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _python_address(generator: random.Random) -> int | None:
    """Return where the generator keeps its index and its 624 words, or None if that cannot be told for this python."""
    address = id(generator) + object.__basicsize__
    _, words, _ = generator.getstate()
    expected = struct.pack(f"<I{_WORDS}I", words[-1], *words[:-1])
    fits = type(generator).__basicsize__ >= object.__basicsize__ + _TWISTER_BYTES
    return address if fits and ctypes.string_at(address, _TWISTER_BYTES) == expected else None


def _restore_python(state: bytes) -> None:
    index, *words = struct.unpack_from(f"<I{_WORDS}I", state)
    has_gauss, gauss = _GAUSS.unpack_from(state, _TWISTER_BYTES)
    random.setstate((3, (*words, index), gauss if has_gauss else None))


def _restore_numpy(state: bytes) -> None:
    import numpy

    *words, index = struct.unpack_from(f"<{_WORDS}Ii", state)
    has_gauss, gauss = _GAUSS.unpack_from(state, _TWISTER_BYTES)
    numpy.random.set_state(("MT19937", numpy.array(words, dtype=numpy.uint32), index, has_gauss, gauss))


def _numpy_slow() -> bytes:
    import numpy

    state: Any = numpy.random.get_state(legacy=True)
    name, words, index, has_gauss, gauss = state
    if name != "MT19937":  # the script has put another bit generator under numpy's global functions
        return b""
    return bytes(words.tobytes()) + struct.pack("<i", index) + _GAUSS.pack(has_gauss, gauss)


def _numpy_reader() -> Callable[[], bytes]:
    """Return the fast way to read numpy's global generator, or the slow one if the fast one reads something else."""
    from numpy.random import mtrand

    source: Any = mtrand._rand
    bits = source._bit_generator
    if type(bits).__name__ != "MT19937":
        return _numpy_slow
    offset = _gauss_offset(type(source))
    if offset is None:
        return _numpy_slow
    twister, gauss = bits.ctypes.state_address, id(source) + offset

    def fast() -> bytes:
        if source._bit_generator is not bits:  # numpy.random.set_bit_generator() was called since
            return _numpy_slow()
        flag = ctypes.string_at(gauss, 16)
        return ctypes.string_at(twister, _TWISTER_BYTES) + flag[:4] + flag[8:]

    return fast if fast() == _numpy_slow() else _numpy_slow


def _gauss_offset(kind: Any) -> int | None:
    """Return where a RandomState keeps its spare normal number (flag, padding, double), found with a marked probe."""
    probe, mark = kind(0), 0.7390851332151607
    _, words, index, _, _ = probe.get_state(legacy=True)
    probe.set_state(("MT19937", words, index, 1, mark))
    memory = ctypes.string_at(id(probe), kind.__basicsize__)
    at = memory.find(struct.pack("<d", mark)) - 8
    if at < 0 or memory[at : at + 4] != struct.pack("<i", 1):
        return None
    probe.set_state(("MT19937", words, index, 0, 0.0))
    return at if ctypes.string_at(id(probe) + at, 4) == bytes(4) else None
