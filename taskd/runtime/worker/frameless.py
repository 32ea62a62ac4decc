"""Replacements of functions without a frame of ours: warnings keep their line, tracebacks their length.

Rules:

1. Every function of ours that stands between a user and torch for longer than a call is made here. A wrapper written in
   Python is a frame. `warnings.warn(stacklevel=2)` takes it for the caller, and every traceback shows it.
2. A replacement takes the original's place entirely: name, signature, class, equality and pickling are the original's.
   torch.compile inlines an original that is a function, and none of ours. It breaks its graph at a bound method's. So
   methods that compiled code may call keep their frame (a module's `__call__` and `zero_grad`).
3. Where the core or this Python lacks something (`csrc/frameless.c`), a Python function with the same effect replaces
   it: it has the original's name and signature, and a frame.
"""

import copy
import copyreg
import ctypes
import functools
import logging
import sys
import types
from collections.abc import Callable, Generator
from typing import Any, Final

from taskd.errors import ShimError
from taskd.runtime.box.shim import core, interface

_log = logging.getLogger(__name__)
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A callable, its arguments and its options."""
Steps = Generator[Call | None, Any, Any]
Around = Callable[..., Steps]
"""Body of a replacement. Given the arguments of a call, it yields None to have the original called with them.

It may also yield another call to make instead. It is sent the result, or thrown the error, and returns the caller's
result. It may yield several times, or never.
"""
ORIGINAL: Final = None
"""Value that a generator yields to have the original called."""


def around(original: Any, body: Around) -> Any:
    """Return a callable in place of `original`; each call runs `body`, with no frame between caller and original."""
    kind = _kind()
    return kind(original, body, None, None, None) if kind is not None else _in_python(original, body)


def followed(
    original: Any, returned: Callable[[], object] | None = None, failed: Callable[[BaseException], object] | None = None
) -> Any:
    """Return a callable in place of `original` that calls `returned()`, or `failed(error)`, after it. Costs less."""
    kind = _kind()
    if kind is not None:
        return kind(original, None, None, returned, failed)

    def body(*_: Any, **__: Any) -> Steps:
        try:
            result = yield ORIGINAL
        except BaseException as error:
            if failed is not None:
                failed(error)
            raise
        if returned is not None:
            returned()
        return result

    return _in_python(original, body)


def sent_on(original: Any, choose: Callable[[Any], Callable[..., Any]]) -> Any:
    """Return a method in place of `original`: `choose(self)` returns the callable for the other arguments."""
    kind = _kind()
    if kind is not None:
        return kind(original, None, choose, None, None)

    def body(this: Any, *args: Any, **options: Any) -> Steps:
        return (yield choose(this), args, options)

    return _in_python(original, body)


def instead(original: Any, replacement: Callable[..., Any]) -> Any:
    """Return a callable in place of `original` that calls `replacement` with the same arguments."""

    def body(*args: Any, **options: Any) -> Steps:
        return (yield replacement, args, options)

    return around(original, body)


def stop() -> Steps:
    """Leave a body by StopIteration, which a generator cannot raise: Python makes a RuntimeError of it."""
    yield next, (iter(()),), {}


def finish(steps: Steps) -> Any:
    """Do the steps of a body here and now, none of which may request the original, and return their result."""
    return _in_python(_no_original, lambda: steps)()


def caller() -> types.FrameType:
    """Return the frame that has called the body's replacement. For bodies alone."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    assert frame is not None
    return frame


def original_of(call: Any) -> Any:
    """Return the original behind `call`, if it was made here; else None."""
    kind = _kind()
    if kind is not None and type(call) is kind:
        return vars(kind)["original"].__get__(call)
    return getattr(call, "_taskd_original", None)


@functools.cache
def _kind() -> Any:
    """Return the core's class; None where there is none."""
    try:
        method = core().taskd_frameless_method()
        if method == interface().NULL:
            raise ShimError("this Python does not export its stable ABI")
    except ShimError as error:
        _log.debug("wrappers have frames: %s", error)
        return None
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    kind = make(int(interface().cast("intptr_t", method)), None, None)(object.__basicsize__, types.MethodType)
    copyreg.pickle(kind, _reduce)  # copy and pickle take it for a global name, as they do a function
    return kind


def _no_original() -> Any:
    raise NotImplementedError("these steps stand in nobody's place")


def _reduce(call: Any) -> Any:
    """Return a name if it leads to `call` itself, else the means to make the original again."""
    original = original_of(call)
    if isinstance(original, types.MethodType):
        return getattr, (original.__self__, original.__name__)
    path = getattr(original, "__qualname__", "")
    found: Any = sys.modules.get(getattr(original, "__module__", ""))
    for name in path.split("."):
        found = getattr(found, name, None)
    return path if found is call else (copy.copy, (original,))  # a copy of a function is itself


def _in_python(original: Any, body: Around) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        steps, result, error = body(*args, **options), None, None
        try:
            while True:
                try:
                    wanted = steps.send(result) if error is None else steps.throw(error)
                except StopIteration as end:
                    return end.value
                except RuntimeError as other:
                    if isinstance(error, StopIteration) and other.__cause__ is error:
                        raise error from None  # a generator makes another error of it
                    raise
                result, error = None, None
                function, given, named = wanted or (original, args, options)
                try:
                    result = function(*given, **named)
                except BaseException as raised:  # noqa: BLE001 - the body decides
                    error = raised
        finally:
            del error  # its traceback has this frame

    vars(call)["_taskd_original"] = original
    vars(call)["_torchdynamo_inline"] = original
    return call
