"""What each step needs of taskd, done by functions of the core that Python calls directly (`csrc/pulse.c` has the why).

Rules:

1. A function keeps alive all that it points at, through the integer that is its `self`.
2. Where the core or this Python lacks something there is no `Pulse`, and the caller does the same in Python.
"""

import ctypes
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taskd.errors import ShimError
from taskd.runtime.box.shim import core, interface

_log = logging.getLogger(__name__)
Buffer = bytes | memoryview
Hook = Callable[..., None]


@dataclass(frozen=True)
class Target:
    """Where positions go: writable memory of five slots of equal size, and the sequence number of the newest entry."""

    memory: Any
    slot_bytes: int
    sequence: memoryview


@dataclass(frozen=True)
class Sources:
    """What is copied, one after the other, and the two conditions under which that is the whole truth.

    Attributes:
        buffers: read at each call.
        pointer: an address, and what the pointer that stands there must point at; None if nothing can move.
        generator: an object whose attribute `spare` must be None.

    """

    buffers: Sequence[Buffer]
    pointer: tuple[int, int] | None
    generator: object
    spare: str


class _Address(int):
    """The `self` of a function of the core."""

    owner: object


class Pulse:
    """The functions for one training state.

    `commit(step)` puts down a committed position and shows the step in the black box. `after_forward`, a forward hook
    of modules, puts down a tentative one for `state.step + 1`. `optimizers` has the two step hooks of each optimizer;
    they count in `counts`, two numbers each (begun, done), which `commit` sets to 0. Where `slowly` is called, commit
    and forward pass are put down by its two functions.

    Raises:
        ShimError: the core cannot do it in this Python.

    """

    def __init__(
        self, state: object, target: Target, sources: Sources, counts: memoryview, slowly: tuple[Hook, Hook]
    ) -> None:
        ffi, library = interface(), core()
        if len(sources.buffers) > library.TASKD_PULSE_SPANS:
            raise ShimError(f"{len(sources.buffers)} buffers are more than the {library.TASKD_PULSE_SPANS} of a pulse")
        raw = ffi.new("struct taskd_pulse *")
        objects = [state, "step", sources.generator, sources.spare, *slowly]
        self._kept = (raw, objects, target, sources, counts)
        self._pack: Callable[[], bytes] | None = None
        raw.slots = _pointer("char *", target.memory)
        library.taskd_pulse_own(raw)
        raw.slot_bytes = target.slot_bytes
        raw.sequence = _pointer("int64_t *", target.sequence)
        raw.spans = len(sources.buffers)
        for span, buffer in zip(raw.span, sources.buffers, strict=False):
            span.at, span.bytes = _pointer("void *", buffer), len(buffer)
        raw.spans_bytes = sum(map(len, sources.buffers))
        raw.counts = _pointer("struct taskd_count *", counts)
        raw.optimizers = len(counts) // 2
        if sources.pointer is not None:
            raw.pointer = ffi.cast("void **", sources.pointer[0])
            raw.pointed = ffi.cast("void *", sources.pointer[1])
        names = ("state", "step_name", "generator", "spare_name", "commit_slowly", "forward_slowly")
        for name, value in zip(names, objects, strict=True):
            setattr(raw, name, ffi.cast("void *", id(value)))
        self.commit: Callable[[int], None] = self._function(library.TASKD_PULSE_COMMIT, raw)
        self.after_forward: Hook = self._function(library.TASKD_PULSE_FORWARD, raw)
        self.optimizers: list[tuple[Hook, Hook]] = [
            (
                self._function(library.TASKD_PULSE_BEFORE, raw.counts + index),
                self._function(library.TASKD_PULSE_AFTER, raw.counts + index),
            )
            for index in range(raw.optimizers)
        ]

    def pack_with(self, pack: Callable[[], bytes]) -> None:
        """From now on what `pack` returns is put down behind the sources."""
        self._pack = pack
        self._kept[0].pack = interface().cast("void *", id(pack))

    def _function(self, which: int, of: Any) -> Any:
        method = core().taskd_pulse_method(which)
        if method == interface().NULL:
            raise ShimError("this Python does not export its stable ABI")
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        address = _Address(int(interface().cast("intptr_t", of)))
        address.owner = self
        return make(int(interface().cast("intptr_t", method)), address, None)


def pulse_of(
    state: object, target: Target, sources: Sources | None, counts: memoryview, slowly: tuple[Hook, Hook]
) -> Pulse | None:
    """A `Pulse`; None where not every generator can be read, or the core cannot do it: then Python does the same."""
    if sources is None:
        return None
    try:
        return Pulse(state, target, sources, counts, slowly)
    except ShimError as error:
        _log.debug("steps are counted in Python: %s", error)
        return None


def _pointer(kind: str, memory: Any) -> Any:
    """No export is held: the collector may meet the view before the pulse, and dislikes views with exports."""
    ffi = interface()
    return ffi.cast(kind, int(ffi.cast("intptr_t", ffi.from_buffer(memory))))


def guard(memory: Any) -> Callable[[], object]:
    """Others may cut the file that is mapped as `memory`: this costs a process with a black box no SIGBUS.

    Call what is returned before it is unmapped.
    """
    try:
        at = _pointer("void *", memory)
        if core().taskd_guard(at, len(memory)) != 0:
            return lambda: None
    except ShimError:
        return lambda: None
    end = weakref.finalize(memory, core().taskd_guard, at, 0)
    end.atexit = False
    return end
