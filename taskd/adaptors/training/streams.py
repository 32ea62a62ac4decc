"""Work of another thread on an accelerator's tensors: after the main thread's earlier work, beside its later work."""

import ctypes
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch

_log = logging.getLogger(__name__)
_OWN_CAPTURES_ALONE: Final = 1
"""`cudaStreamCaptureModeThreadLocal` of CUDA's runtime."""


def event_of(tensors: Iterable[torch.Tensor]) -> Any:
    """Record an event on the current stream of the accelerator that holds these tensors.

    Return the device, its torch module and the event; None if all tensors are on the host.
    """
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    if device is None:
        return None
    module = torch.get_device_module(device)
    event = module.Event()
    event.record(module.current_stream(device))
    return device, module, event


def let_others_capture() -> None:
    """Let other threads capture CUDA graphs while this thread uses the device.

    By default CUDA rejects a call that waits for the device, on any thread, while a thread captures a graph.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    mode, library = ctypes.c_int(_OWN_CAPTURES_ALONE), f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}"
    for name in (None, library):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_NOW).cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            return
    _log.debug("%s is not found: a capture of a CUDA graph while the state is copied may fail", library)


@contextmanager
def beside(ready: Any) -> Iterator[None]:
    """Run the body on a new stream of the accelerator after the event in `ready`; at the end wait for that stream.

    `ready` comes from `event_of`. If it is None, the body runs as it is.
    """
    if ready is None:
        yield
        return
    device, module, event = ready
    stream = module.Stream(device)
    stream.wait_event(event)
    with module.stream(stream):
        yield
    stream.synchronize()
