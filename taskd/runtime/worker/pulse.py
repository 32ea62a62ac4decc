"""taskd's work in each step, done by functions of the core that Python calls directly (reasons: `csrc/pulse.c`).

Rules:

1. A function keeps alive all that it points at, through the integer that is its `self`.
2. Where the core or this Python lacks something there is no `Pulse`, and the caller does the same in Python.
"""

import ctypes
import enum
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from taskd.errors import ShimError
from taskd.runtime.box.shim import core, interface

_log = logging.getLogger(__name__)
Buffer = bytes | memoryview
Hook = Callable[..., None]
NEVER: Final = 1 << 62
"""Number of a step that is never reached: no commit is awaited."""


@dataclass(frozen=True)
class Target:
    """Memory for positions: five writable slots of equal size, and the sequence number of the newest entry."""

    memory: Any
    slot_bytes: int
    sequence: memoryview


@dataclass(frozen=True)
class Sources:
    """Buffers to copy, one after the other, and the two conditions under which they are complete.

    Attributes:
        buffers: read at each call.
        pointer: address of a pointer, and the value that it must have; None if nothing can move.
        generator: object whose attribute `spare` must be None; None if there is none.
    """

    buffers: Sequence[Buffer]
    pointer: tuple[int, int] | None
    generator: object | None
    spare: str


class Extra(enum.IntEnum):
    """Reason why a commit has more to do than to count. Each has one writer at a time."""

    STATE = 0  # a reason in the state itself; the thread that trains sets it
    ON_COMMIT = 1  # a commit is awaited; the control thread sets it too
    FAILURE = 2  # a collective has failed, on any thread


class Board:
    """Numbers of one training state that Python and the core share, side by side in the processor's cache.

    Attributes:
        counts: how often each optimizer's step was begun and done since the last commit.
    """

    def __init__(self, optimizers: int) -> None:
        self._memory = memoryview(bytearray(8 * (4 + 2 * optimizers)))
        self._words = self._memory.cast("q")
        self._extras = self._memory[16:24]
        self.counts = self._words[4:]
        self.demand(Extra.STATE)
        self.due = NEVER

    @property
    def memory(self) -> memoryview:
        """Memory for the core: `struct taskd_board`, and the counts behind it."""
        return self._memory

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return self._words[0]

    @step.setter
    def step(self, step: int) -> None:
        self._words[0] = step

    @property
    def commits(self) -> int:
        """Commits of this process with its present state."""
        return self._words[1]

    @commits.setter
    def commits(self, commits: int) -> None:
        self._words[1] = commits

    @property
    def due(self) -> int:
        """Step whose commit has more to do than to count. Any thread may set it."""
        return self._words[3]

    @due.setter
    def due(self, step: int) -> None:
        self._words[3] = step

    def reset(self) -> None:
        """Reset the counts of the optimizers' steps to zero."""
        for index in range(len(self.counts)):
            self.counts[index] = 0

    def demand(self, extra: Extra, *, wanted: bool = True) -> None:
        """Set, or clear if not `wanted`, a reason why the next commit has more to do than to count."""
        self._extras[extra] = wanted


class _Address(int):
    """Address that is the `self` of a function of the core."""

    owner: object


class Pulse:
    """Functions of the core for one training state.

    `commit(step)` stores a committed position and shows the step in the black box. `commit_quickly(loss)` is a whole
    commit, if there is nothing to do but to count. Otherwise it calls `commit_whole`. `after_forward` stores a
    tentative position for the board's step + 1. `optimizers` has the two step hooks of each optimizer. They count in
    the board's counts, two numbers each (begun, done), which a commit sets to 0. If the core cannot store a position,
    the two functions `slowly` do it, after a commit and after a forward pass.

    Raises:
        ShimError: the core cannot do it in this Python.
    """

    def __init__(
        self,
        board: Board,
        target: Target,
        sources: Sources,
        commit_whole: Callable[..., None],
        slowly: tuple[Hook, Hook],
    ) -> None:
        ffi, library = interface(), core()
        if len(sources.buffers) > library.TASKD_PULSE_SPANS:
            raise ShimError(f"{len(sources.buffers)} buffers are more than the {library.TASKD_PULSE_SPANS} of a pulse")
        raw = ffi.new("struct taskd_pulse *")
        counts = board.counts
        numbers = None if sources.generator is None else vars(sources.generator)
        objects = [numbers, sources.spare, commit_whole, *slowly]
        self._kept = (raw, objects, target, sources, board)
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
        raw.board = _pointer("struct taskd_board *", board.memory)
        if sources.pointer is not None:
            raw.pointer = ffi.cast("void **", sources.pointer[0])
            raw.pointed = ffi.cast("void *", sources.pointer[1])
        names = ("numbers", "spare_name", "commit_whole", "commit_slowly", "forward_slowly")
        for name, value in zip(names, objects, strict=True):
            setattr(raw, name, ffi.NULL if value is None else ffi.cast("void *", id(value)))
        self.commit: Callable[[int], None] = self._function(library.TASKD_PULSE_COMMIT, raw)
        self.commit_quickly: Callable[[Any], None] = self._function(library.TASKD_PULSE_QUICK, raw)
        self.after_forward: Hook = self._function(library.TASKD_PULSE_FORWARD, raw)
        self.optimizers: list[tuple[Hook, Hook]] = [
            (
                self._function(library.TASKD_PULSE_BEFORE, raw.counts + index),
                self._function(library.TASKD_PULSE_AFTER, raw.counts + index),
            )
            for index in range(raw.optimizers)
        ]

    def pack_with(self, pack: Callable[[], bytes]) -> None:
        """Store the result of `pack` behind the sources from now on."""
        self._pack = pack
        self._kept[0].pack = interface().cast("void *", id(pack))

    def after_pass(
        self, module: object, trains: memoryview, grad_enabled: Callable[[], bool], unusual: Hook, *, records: bool
    ) -> Hook:
        """Return the hook to call after each forward pass of a module.

        If its `training` is True, `grad_enabled` returns True, and `trains` is not 0, the hook stores a tentative
        position, provided that it `records`. If one of the three does not hold, it calls `unusual`.
        """
        ffi = interface()
        raw = ffi.new("struct taskd_pass *")
        objects = [vars(module), "training", grad_enabled, unusual]
        raw.pulse = self._kept[0] if records else ffi.NULL
        raw.trains = _pointer("int64_t *", trains)
        for name, value in zip(("attributes", "training_name", "grad_enabled", "unusual"), objects, strict=True):
            setattr(raw, name, ffi.cast("void *", id(value)))
        return cast(Hook, self._function(core().TASKD_PULSE_PASS, raw, raw, objects, trains))

    def _function(self, which: int, of: Any, *kept: object) -> Any:
        method = core().taskd_pulse_method(which)
        if method == interface().NULL:
            raise ShimError("this Python does not export its stable ABI")
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        address = _Address(int(interface().cast("intptr_t", of)))
        address.owner = (self, *kept)
        return make(int(interface().cast("intptr_t", method)), address, None)


def pulse_of(
    board: Board,
    target: Target,
    sources: Sources | None,
    commit_whole: Callable[..., None],
    slowly: tuple[Hook, Hook],
) -> Pulse | None:
    """Return a `Pulse`; None if a generator cannot be read, or the core cannot do it: then Python does the same."""
    if sources is None:
        return None
    try:
        return Pulse(board, target, sources, commit_whole, slowly)
    except ShimError as error:
        _log.debug("steps are counted in Python: %s", error)
        return None


def _pointer(kind: str, memory: Any) -> Any:
    """Return a pointer to `memory` without an export.

    The collector may meet the view before the pulse, and a view with exports is an obstacle to it.
    """
    ffi = interface()
    return ffi.cast(kind, int(ffi.cast("intptr_t", ffi.from_buffer(memory))))


def guard(memory: Any) -> Callable[[], object]:
    """Protect a process with a black box from a SIGBUS if others cut the file that is mapped as `memory`.

    Call the returned function before the file is unmapped.
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
