"""NCCL's side of its profiler interface, for machines without a GPU: the calls and arguments of NCCL's headers.

A plugin is a struct of a name and five functions; the struct that describes an event begins with its kind.
"""

import ctypes
from pathlib import Path
from typing import Any, Final

COLLECTIVE: Final = 1 << 1
KERNEL: Final = 1 << 6
_KERNEL_STOPS: Final = 22
_DESCRIPTION_BYTES: Final = 256
_OPENING: Final = {  # number of arguments before the mask of wanted kinds, and all arguments behind it
    3: (0, ()),
    4: (0, (b"name", ctypes.c_uint64(7), 1, 2, 0, None)),
    5: (1, (b"name", 1, 2, 0, None)),
}


class Plugin:
    """A loaded plugin, by one of its interfaces."""

    def __init__(self, path: Path | str, interface: int = 5) -> None:
        self.interface = interface
        table = (ctypes.c_void_p * 6).in_dll(ctypes.CDLL(str(path)), f"ncclProfiler_v{interface}")
        self.name = ctypes.cast(table[0] or 0, ctypes.c_char_p).value
        function = ctypes.CFUNCTYPE(ctypes.c_int)
        self.init, self.start, self.stop, self.record, self.finalize = (function(address or 0) for address in table[1:])


class Communicator:
    """One communicator: its kernels start and stop, channel by channel."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self._context = ctypes.c_void_p()
        wanted = ctypes.c_int()
        before, behind = _OPENING[plugin.interface]
        first: list[Any] = [ctypes.c_uint64(9)] * before
        assert plugin.init(ctypes.byref(self._context), *first, ctypes.byref(wanted), *behind) == 0
        self.wanted = wanted.value

    def start(self, kind: int = KERNEL) -> int | None:
        """Begin an event. Return the plugin's handle."""
        description = (ctypes.c_uint8 * _DESCRIPTION_BYTES)()
        ctypes.memset(description, 0xEE, _DESCRIPTION_BYTES)
        word = ctypes.c_uint64 if self.plugin.interface >= 5 else ctypes.c_uint8
        word.from_buffer(description).value = kind
        handle = ctypes.c_void_p(1)
        assert self.plugin.start(self._context, ctypes.byref(handle), description) == 0
        return handle.value

    def stop(self, handle: int | None) -> None:
        """End an event."""
        assert handle is not None
        state = (ctypes.c_uint8 * _DESCRIPTION_BYTES)()
        assert self.plugin.record(ctypes.c_void_p(handle), _KERNEL_STOPS, state) == 0
        assert self.plugin.stop(ctypes.c_void_p(handle)) == 0

    def close(self) -> None:
        """Destroy the communicator."""
        assert self.plugin.finalize(self._context) == 0
