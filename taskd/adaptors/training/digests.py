"""A digest of tensors' bytes that costs about as much as reading them, on the device where they are.

Each word of 8 bytes is multiplied by an odd number of its place; the products are summed modulo 2^64. A change of one
word always changes the sum. Small ones in the host's memory have a CRC, which saves torch's calls. It is no defence
against somebody who means to deceive.
"""

import hashlib
import zlib
from collections.abc import Iterable

import torch

_PIECE = 1 << 17
_WORD = 8
_SMALL_BYTES = 1 << 17


def digest(tensors: Iterable[torch.Tensor], size_bytes: int = 8) -> str:
    """Hexadecimal, of the bytes of these tensors in their order, and of their lengths.

    Raises:
        RuntimeError: one has no memory that can be read (sparse, meta).
    """
    sums = [_sums(tensor) for tensor in tensors]
    return hashlib.blake2b(repr(sums).encode(), digest_size=size_bytes).hexdigest()


def _sums(tensor: torch.Tensor) -> list[int]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.device.type == "cpu" and len(flat) <= _SMALL_BYTES:
        return [len(flat), zlib.crc32(flat.numpy().data)]
    if flat.storage_offset() % _WORD:
        flat = flat.clone()
    whole = len(flat) // _WORD * _WORD
    words, rest = flat[:whole].view(torch.int64), flat[whole:]
    if not whole:
        return [len(flat), *rest.tolist()]
    odd = torch.arange(1, 2 * min(len(words), _PIECE), 2, dtype=torch.int64, device=flat.device)
    product, sums = torch.empty_like(odd), []
    for piece in torch.split(words, _PIECE):
        torch.mul(piece, odd[: len(piece)], out=product[: len(piece)])
        sums.append(product[: len(piece)].sum())
    return [len(flat), *torch.stack(sums).tolist(), *rest.tolist()]
