"""torch's index of a checkpoint as an attacker would write it: with code, odd numbers, and misplaced operations.

Rules:

1. Honest ones are pickled from torch's own classes. Their attributes are changed, and the operations of the pickle,
   one by one.
2. Code in a pickle is `strike`, of this module, which records its run.
"""

import io
import os
import pickle
import pickletools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.fuzz.damage import damaged

SHAPES = {"model.weight": (4, 3), "model.bias": (4,), "optimizer.state.weight.step": ()}
SIZES = {"__0_0.distcp": 4000, "__1_0.distcp": 2000}
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 31, 1 << 62, 1 << 64, 1 << 2000, 1.5, float("nan"), "", "../x", "/etc/passwd", "\x1b[2J\n",
    "\udc80", "x" * 300, b"\xff", [], {}, (), [[]], {(): ()}, {None: 1}, torch.Size([1 << 62]), torch.Size([0]),
    torch.float32, torch.strided, Path("/tmp"), frozenset((1,)), range(3), len, os.PathLike, Ellipsis,
)  # fmt: skip
CODES = [bytes([code]) for code in range(256)]
ARGUMENTS = (
    b"\0",
    b"\1",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\1",
    b"os\nsystem\n",
    b"5\n",
    b"\x08builtins",
    b"\x04eval",
)
struck: list[str] = []


def strike(what: str) -> str:
    """Record that an attacker's code has run."""
    struck.append(what)
    return what


class Code:
    """An object that calls `strike` when it is unpickled."""

    def __reduce__(self) -> Any:
        return strike, ("it was run",)


def honest() -> Metadata:
    """Return an index of three tensors, one of them in two pieces, and of an object."""
    metadata = Metadata({}, {}, {}, StorageMeta(Path("/shelf/step-3"), "id"))
    begin = 0
    for name, shape in SHAPES.items():
        size = torch.Size(shape)
        parts = 2 if len(shape) == 2 else 1
        sizes = torch.Size((shape[0] // 2, *shape[1:])) if parts == 2 else size
        chunks = [
            ChunkStorageMetadata(
                torch.Size([part * sizes[0] if axis == 0 and parts == 2 else 0 for axis in range(len(shape))]), sizes
            )
            for part in range(parts)
        ]
        metadata.state_dict_metadata[name] = TensorStorageMetadata(TensorProperties(), size, chunks)
        metadata.planner_data[name] = (name,)
        for part, chunk in enumerate(chunks):
            metadata.storage_data[MetadataIndex(name, chunk.offsets, part)] = _StorageInfo(
                f"__{part}_0.distcp", begin, 700
            )
        begin += 700
    metadata.state_dict_metadata["optimizer.param_groups.0.lr"] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex("optimizer.param_groups.0.lr")] = _StorageInfo("__0_0.distcp", begin, 300)
    return metadata


def bases(dice: random.Random) -> list[list[bytes]]:
    """Return indexes as the bytes of their operations: honest, with odd attributes, with code in them."""
    found = [honest()] * 150
    for _ in range(300):
        found.append(honest())
        _spoil(found[-1], dice)
    data = [pickle.dumps(one) for one in found]
    data += [pickle.dumps(dice.choice(found), protocol) for protocol in range(6) for _ in range(5)]
    return [_operations(one) for one in data]


def _spoil(index: Metadata, dice: random.Random) -> None:
    owners: list[Any] = [index, *index.storage_data, *index.storage_data.values()]
    for tensor in index.state_dict_metadata.values():
        owners += [tensor, *getattr(tensor, "chunks", [])]
    owner = dice.choice(owners)
    value = dice.choice((*ODD, Code(), Code, index))
    names = [*vars(owner)] or ["later"]
    if isinstance(owner, MetadataIndex) or dice.random() < 0.2:
        holder: Any = dice.choice((index.state_dict_metadata, index.planner_data, index.storage_data))
        holder[dice.choice((None, 5, "model.bias", (), *SHAPES))] = value
    else:
        vars(owner)[dice.choice(names)] = value


def _operations(data: bytes) -> list[bytes]:
    begins = [at for _, _, at in pickletools.genops(io.BytesIO(data)) if at is not None]
    return [data[begin:end] for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)]


def attack(dice: random.Random, all_bases: Sequence[list[bytes]]) -> bytes:
    """Return one of the bases unchanged, with misplaced operations, or with damaged bytes."""
    chosen = dice.choice(all_bases)
    way = dice.random()
    if way < 0.1:
        return b"".join(chosen)
    if way < 0.5:
        return damaged(b"".join(chosen), dice, ARGUMENTS)
    operations = [*chosen]
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(len(operations))
        other = dice.choice((dice.choice(operations), dice.choice(CODES) + dice.choice(ARGUMENTS), dice.choice(CODES)))
        operations[at : at + dice.randrange(2)] = [other] * dice.choice((0, 1, 1, 1, 50))
    return b"".join(operations)
