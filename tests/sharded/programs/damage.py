"""Damage to a rank's memory and to copies of it, with its process or without."""

import os
from pathlib import Path

import torch
from torch import nn

from taskd.adaptors.training.copies.copy_file import CopyFile
from taskd.adaptors.training.sharding.shards import local
from tests.scripts import diary

_COPIES = [Path(path) for path in os.environ.get("TASKD_COPIES", "").split(":") if path]


def lose_copies() -> None:
    """Erase the copies that this rank's place on its node can read, as in a loss of the node."""
    for path in _COPIES:
        CopyFile(path).erase()


def flip_bits() -> None:
    """Flip one bit in each copy of this rank's own state on its node."""
    for path in _COPIES:
        file = CopyFile(path)
        head = file.head()
        if head is not None and head.of == diary.RANK:
            file.bytes(head.size_bytes)[-100] ^= 1


def flip_a_weight(model: nn.Module) -> None:
    """Flip one bit of this rank's part of the largest parameter: a mantissa's highest, so that results differ."""
    largest = local(max(model.parameters(), key=torch.Tensor.numel))
    words = largest.view(-1)[largest.numel() // 2 :][:1].view(torch.int32)
    words ^= 1 << 22
