"""Memory in which random number generators keep their state.

The public calls that read a state take 5 to 50 us, and several times that in the middle of training, whose steps empty
the processor's caches. Python, numpy and torch each keep a Mersenne twister of 2,500 bytes at a fixed place. This
module searches for it, and compares its content with the result of the public call. If the two differ there is no view,
and the caller uses the public call.

A view shows the present state whenever it is read. Nothing is ever written through one.
"""

import ctypes
import os
import random
import struct
from typing import Any

import torch

from taskd.adaptors.training.tree import bytes_of
from taskd.runtime.worker.pulse import Buffer

_WORDS = 624
TWISTER_BYTES = (_WORDS + 1) * 4
SPARE = struct.Struct("<i4xd")
"""numpy's spare normal number: a flag whether there is one, and the number."""

_HEAD = struct.Struct("<QiB3xI")  # torch, before the words: seed, words left, seeded, next word
_TAIL = struct.Struct("<4xfB3xdB")  # after the words: spare float, is there one; spare double, is there one
_LEGACY = struct.Struct(f"<QiiQ{_WORDS}QdddixxxxfBxxx")  # the result of `torch.Generator.get_state`
TORCH_BYTES = _HEAD.size + _WORDS * 4 + _TAIL.size
_SEARCHED_BYTES = 512  # range of torch's generator in which the head and the words may begin


def python_view(generator: random.Random) -> memoryview | None:
    """Return a view of index and words of one of Python's generators; None if they are not found there."""
    _, words, _ = generator.getstate()
    if type(generator).__basicsize__ < object.__basicsize__ + TWISTER_BYTES:
        return None
    view = _view(id(generator) + object.__basicsize__, TWISTER_BYTES)
    return view if view == struct.pack(f"<I{_WORDS}I", words[-1], *words[:-1]) else None


def numpy_views(source: Any) -> tuple[memoryview, memoryview] | None:
    """Return views of a numpy `RandomState` over MT19937: words and position, and the spare number; None if unknown."""
    offset = _spare_offset(type(source))
    if offset is None:
        return None
    _, words, index, has_spare, spare = source.get_state(legacy=True)
    twister = _view(source._bit_generator.ctypes.state_address, TWISTER_BYTES)
    spares = _view(id(source) + offset, SPARE.size)
    there, value = SPARE.unpack(spares)
    fits = (
        twister == words.tobytes() + struct.pack("<i", index) and there == has_spare and (not there or value == spare)
    )
    return (twister, spares) if fits else None


def torch_view(generator: torch.Generator) -> memoryview | None:
    """Return a view of a torch CPU generator's whole state, which `torch_state` converts for `set_state`; or None."""
    address = ctypes.c_size_t.from_address(id(generator) + object.__basicsize__).value
    state = bytes_of(generator.get_state())
    words = struct.pack(f"<{_WORDS}I", *_LEGACY.unpack(state)[4 : 4 + _WORDS])
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # a wrong address raises here; a pointer would crash
            seen = os.pread(memory.fileno(), _SEARCHED_BYTES + TORCH_BYTES, address)
    except OSError:
        return None
    at = seen.find(words) - _HEAD.size
    if at < 0 or len(seen) < at + TORCH_BYTES:
        return None
    view = _view(address + at, TORCH_BYTES)
    return view if torch_state(bytes(view)) == state else None


def pointer_to(part: object, owner: object) -> tuple[int, int] | None:
    """Return the address of `owner`'s pointer to `part`, and that pointer; None if it has none, or more than one."""
    words = struct.unpack(f"{type(owner).__basicsize__ // 8}Q", ctypes.string_at(id(owner), type(owner).__basicsize__))
    found = [index for index, word in enumerate(words) if word == id(part)]
    return (id(owner) + 8 * found[0], id(part)) if len(found) == 1 else None


def torch_state(raw: bytes) -> bytes:
    """Convert the bytes of a `torch_view` to the result that `get_state` would have returned."""
    seed, left, seeded, following = _HEAD.unpack_from(raw)
    words = struct.unpack_from(f"<{_WORDS}I", raw, _HEAD.size)
    single, has_single, double, has_double = _TAIL.unpack_from(raw, _HEAD.size + _WORDS * 4)
    spare = (0.0, double if has_double else 0.0, 0.0, has_double)
    return _LEGACY.pack(seed, left, seeded, following, *words, *spare, single if has_single else 0.0, has_single)


def torch_mark(raw: Buffer) -> tuple[Buffer, ...]:
    """Return the few bytes of a `torch_view` that show whether numbers were drawn; all of any other state."""
    if len(raw) != TORCH_BYTES:
        return (raw,)
    tail = TORCH_BYTES - _TAIL.size
    return raw[:13], raw[16 : _HEAD.size + 16], raw[tail + 8 : tail + 9], raw[-1:]  # bytes in between have no meaning


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B").toreadonly()


def _spare_offset(kind: Any) -> int | None:
    """Return the offset of a RandomState's spare normal number (flag, padding, double), found with a marked probe."""
    probe, mark = kind(0), 0.7390851332151607
    _, words, index, _, _ = probe.get_state(legacy=True)
    probe.set_state(("MT19937", words, index, 1, mark))
    memory = ctypes.string_at(id(probe), kind.__basicsize__)
    at = memory.find(struct.pack("<d", mark)) - 8
    if at < 0 or memory[at : at + 4] != struct.pack("<i", 1):
        return None
    probe.set_state(("MT19937", words, index, 0, 0.0))
    return at if ctypes.string_at(id(probe) + at, 4) == bytes(4) else None
