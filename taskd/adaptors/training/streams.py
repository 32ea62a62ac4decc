"""Work of another thread on tensors of an accelerator: behind what the main thread has set off, and beside the rest."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def event_of(tensors: Iterable[torch.Tensor]) -> Any:
    """What the present stream has done till now, of the accelerator that these are on; None on the host."""
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    if device is None:
        return None
    module = torch.get_device_module(device)
    event = module.Event()
    event.record(module.current_stream(device))
    return device, module, event


@contextmanager
def beside(ready: Any) -> Iterator[None]:
    """On an accelerator: on a stream of this thread's own behind that event, which is waited for at the end."""
    if ready is None:
        yield
        return
    device, module, event = ready
    stream = module.Stream(device)
    stream.wait_event(event)
    with module.stream(stream):
        yield
    stream.synchronize()
