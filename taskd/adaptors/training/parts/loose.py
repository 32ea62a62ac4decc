"""Buffers that are in no `state_dict` (`persistent=False`): a new process gets those that the training changes.

Rules:

1. Most are constants (masks, tables) that every set-up makes: only buffers that have changed since are sent. DDP writes
   all buffers of ranks other than 0 in each forward pass; those count as changed. Sharded buffers count too: a new
   process cannot fill them in its set-up, and gets their parts from a peer.
2. If a module has replaced a buffer, possibly by one of another shape, the new process replaces it too.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class Loose:
    """Non-persistent buffers of the modules among the parts, as they are now.

    Args:
        parts: parts by name.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self._known = {path: (weakref.ref(buffer), _version(buffer)) for path, buffer in self._all()}

    def changed(self) -> dict[str, torch.Tensor]:
        """Return the buffers that have changed, by the part's name and the path in it."""
        return {path: buffer for path, buffer in self._all() if self._has_changed(path, buffer)}

    def own(self) -> dict[str, torch.Tensor]:
        """Return all of these buffers."""
        return dict(self._all())

    def put(self, given: Mapping[str, torch.Tensor]) -> None:
        """Replace the own buffers by these, where they do not share the memory already."""
        for path, buffer in given.items():
            name, _, place = path.partition(".")
            inner, _, leaf = place.rpartition(".")
            module = self._modules[name].get_submodule(inner)
            mine = module._buffers.get(leaf)
            if mine is None or mine.data_ptr() != buffer.data_ptr() or mine.shape != buffer.shape:
                module._buffers[leaf] = buffer

    def _has_changed(self, path: str, buffer: torch.Tensor) -> bool:
        made, version = self._known.get(path, (None, 0))
        return made is None or hasattr(buffer, "_local_tensor") or made() is not buffer or version != _version(buffer)

    def _all(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, part in self._modules.items():
            for inner, module in part.named_modules():
                for leaf in sorted(module._non_persistent_buffers_set):
                    buffer = module._buffers.get(leaf)
                    if buffer is not None:
                        yield ".".join(filter(None, (name, inner, leaf))), buffer


def _version(buffer: torch.Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version
