"""Places of a checkpoint's tensors in its files, from torch's index (`.metadata`).

Rules:

1. Only entries of the wanted tensors are read, and all of these are checked. The shape must match, the pieces must fill
   it, and each piece must lie within a file that the manifest names.
2. Values that torch has written as objects, and would unpickle, are no wanted tensors. torch never gets their places.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

from taskd.adaptors.training.checkpoints.pickle_text import Made, Pairs, read_pickle
from taskd.errors import RestoreError
from taskd.wire.text import line

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_STORED: Final = "torch.distributed.checkpoint.filesystem._StorageInfo"


class WantedTensor(NamedTuple):
    """Description of a tensor to read."""

    shape: tuple[int, ...]
    item_bytes: int


class Piece(NamedTuple):
    """A part of a tensor, and its place in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


def find(index: bytes, wanted: Mapping[str, WantedTensor], files: Mapping[str, int]) -> dict[str, list[Piece]]:
    """Return the pieces of each wanted tensor.

    Args:
        index: the content of `.metadata`.
        wanted: the tensors, by name.
        files: the size of each file in bytes, by name.

    Raises:
        RestoreError: the index cannot be read, or a wanted tensor is missing or different.
    """
    root = _fields(read_pickle(index), f"{_METADATA}.Metadata")
    stored = {}
    for key, place in _pairs(root.get("storage_data")):
        fields = _fields(key, f"{_METADATA}.MetadataIndex")
        name = fields.get("fqn")
        if type(name) is str and name in wanted and "offset" in fields:
            stored[name, _size(fields.get("offset"))] = place
    found = {
        name: list(_pieces(name, tensor, wanted[name], stored))
        for name, tensor in _pairs(root.get("state_dict_metadata"))
        if type(name) is str and name in wanted
    }
    for name, want in wanted.items():
        pieces = found.get(name)
        if pieces is None:
            raise RestoreError(f"found no {_shown(name)}")
        if sum(prod(piece.sizes) for piece in pieces) != prod(want.shape):
            raise RestoreError(f"the pieces of {_shown(name)} are not a tensor of shape {list(want.shape)}")
        for piece in pieces:
            _check(name, piece, want, files)
    return found


def _pieces(
    name: str, tensor: Any, want: WantedTensor, stored: dict[tuple[str, tuple[int, ...]], Any]
) -> Iterator[Piece]:
    fields = _fields(tensor, f"{_METADATA}.TensorStorageMetadata")
    if _size(fields.get("size")) != want.shape:
        raise RestoreError(f"{_shown(name)} is not of shape {list(want.shape)}")
    chunks = fields.get("chunks")
    if type(chunks) is not list:
        raise RestoreError(f"{_shown(name)} has no pieces")
    for chunk in chunks:
        area = _fields(chunk, f"{_METADATA}.ChunkStorageMetadata")
        offsets = _size(area.get("offsets"))
        place = _fields(stored.get((name, offsets)), _STORED)
        file, begin, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if type(file) is not str or type(begin) is not int or type(length) is not int:
            raise RestoreError(f"found no place of {_shown(name)}")
        if place.get("transform_descriptors"):
            raise RestoreError(f"{_shown(name)} is compressed or the like, which no checkpoint of taskd is")
        yield Piece(offsets, _size(area.get("sizes")), file, begin, length)


def _check(name: str, piece: Piece, want: WantedTensor, files: Mapping[str, int]) -> None:
    ends = zip(piece.offsets, piece.sizes, want.shape, strict=False)
    of_one_kind = len(piece.offsets) == len(piece.sizes) == len(want.shape)
    if not of_one_kind or any(offset + size > whole for offset, size, whole in ends):
        raise RestoreError(f"a piece of {_shown(name)} is not within shape {list(want.shape)}")
    is_whole = piece.length >= prod(piece.sizes) * want.item_bytes
    if not is_whole or piece.begin < 0 or piece.begin + piece.length > files.get(piece.file, -1):
        raise RestoreError(f"{_shown(name)} does not lie within {_shown(piece.file)}")


def _fields(value: Any, kind: str) -> dict[str, Any]:
    """Return the attributes of an object of class `kind`."""
    if type(value) is not Made or value.name != kind:
        raise RestoreError(f"found no {kind.rpartition('.')[2]} where one has to be")
    return {key: its for key, its in _pairs(value.state) if type(key) is str}


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    if type(value) is not Pairs:
        raise RestoreError("found no dictionary where one has to be")
    return zip(value[::2], value[1::2], strict=True)


def _size(value: Any) -> tuple[int, ...]:
    if type(value) is Made and value.name == "torch.Size" and len(value.arguments) == 1:
        numbers = value.arguments[0]
        if type(numbers) is tuple and all(type(number) is int and number >= 0 for number in numbers):
            return numbers
    raise RestoreError("found no torch.Size where one has to be")


def _shown(name: str) -> str:
    return line(repr(name), 255)
