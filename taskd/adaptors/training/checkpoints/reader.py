"""torch's reading and writing of a checkpoint's tensors, on files that taskd has opened.

Rules:

1. torch reads no index. It gets the entries that `index` has found there, of tensors and nothing else. The tensors
   themselves are read by torch with `torch.load(weights_only=True)`.
2. A file is made new, for this user alone, in the folder that was opened. Only files are read, no pipes.

This module is imported only where a checkpoint is read or written, because its import takes seconds.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from typing_extensions import override

from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.index import Piece, WantedTensor, find
from taskd.errors import RestoreError
from taskd.runtime.folders.ownfolder import OwnFolder


def reader(path: Path, targets: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> FileSystemReader:
    """Return a reader of these tensors from the checkpoint at `path`, whose files have these sizes.

    Raises:
        OSError, RestoreError: its index cannot be read, or does not have these tensors.
    """
    wanted = {name: WantedTensor(tuple(tensor.shape), tensor.element_size()) for name, tensor in targets.items()}
    try:
        found = find(files.read(path / files.INDEX, files.MOST_INDEX_BYTES), wanted, sizes)
    except RestoreError as error:
        raise RestoreError(f"{files.INDEX}: {error}") from error
    return _CheckpointReader(path, _metadata(targets, found))


def writer(folder: OwnFolder) -> FileSystemWriter:
    """Return a writer into the folder."""
    made = FileSystemWriter(folder.path)
    made.fs = _NewFiles(folder)
    return made


class _CheckpointReader(FileSystemReader):
    def __init__(self, path: Path, metadata: Metadata) -> None:
        super().__init__(path)
        self.fs = _TrueFiles()
        self._metadata = metadata

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _TrueFiles(FileSystem):
    @override
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with files.open_file(Path(path)) as stream:
            yield stream


class _NewFiles(FileSystem):
    def __init__(self, folder: OwnFolder) -> None:
        self._folder = folder

    @override
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with files.new_file(self._folder, Path(path).name) as stream:
            yield stream

    @override
    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        at = self._folder.descriptor
        os.rename(Path(path).name, Path(new_path).name, src_dir_fd=at, dst_dir_fd=at)


def _metadata(targets: Mapping[str, torch.Tensor], found: Mapping[str, list[Piece]]) -> Metadata:
    return Metadata(
        state_dict_metadata={
            name: TensorStorageMetadata(
                properties=TensorProperties(dtype=targets[name].dtype),
                size=targets[name].size(),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
                    for piece in pieces
                ],
            )
            for name, pieces in found.items()
        },
        storage_data={
            MetadataIndex(fqn=name, offset=piece.offsets): _StorageInfo(
                relative_path=piece.file, offset=piece.begin, length=piece.length
            )
            for name, pieces in found.items()
            for piece in pieces
        },
        storage_meta=StorageMeta(),
    )
