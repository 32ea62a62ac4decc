"""Facts of a script's set-up, its data and its text, by which a new process is compared with its predecessor.

Rules:

1. Each process collects these facts as it enters its training function. They go into the record of its set-up
   (`setup_results`). Its successor compares its own facts with them.
2. The collection takes about a millisecond: a recovery waits for it. No item of a dataset is fetched. Of a tensor, an
   array or a list some elements are read, and objects are followed as far as they are datasets of torch's.
3. A fact that only one of the two has is not compared: modules may be imported late.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

from taskd.adaptors.groups.sites import users_files
from taskd.adaptors.training.parts.parts import Parts

_MOST_BYTES: Final = 1 << 20
"""Most bytes that are read of a file."""
_MOST_FILES: Final = 1000
"""Most files that are read. Each takes about 20 us."""
_MOST_VALUES: Final = 200
_ELEMENTS: Final = 64
_DEPTH: Final = 4


def setup_facts(parts: Parts) -> dict[str, str]:
    """Return the facts by their names, as far as they can be read."""
    found: dict[str, str] = {}
    with suppress(Exception):  # a fact that cannot be read proves nothing, and the training goes on
        found.update(_texts())
    for name, part in parts.positions.items():
        if isinstance(part, DataLoader):
            with suppress(Exception):
                found.update(_of_dataset(f"the dataset of {name!r}", part.dataset))
    return found


def expect_same_setup(parts: Parts, known: Mapping[str, str]) -> None:
    """Compare a newcomer's set-up with the facts that its predecessor has recorded.

    Raises:
        RuntimeError: a fact differs.
    """
    now = setup_facts(parts)
    for name, text in known.items():
        if now.get(name, text) != text:
            raise RuntimeError(
                f"the set-up of this new process has come out otherwise than in the first start: {name} was {text}, "
                f"and is {now[name]}. A set-up that is not seeded, or a text that was edited meanwhile, cannot be "
                "repeated alone: all processes start anew"
            )


def _texts() -> Iterator[tuple[str, str]]:
    for name in users_files()[:_MOST_FILES]:
        with suppress(OSError), open(name, "rb") as file:
            yield f"the text of {name}", _short(file.read(_MOST_BYTES))


def _of_dataset(name: str, dataset: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        with suppress(TypeError, NotImplementedError):
            yield f"the length of {name}", str(len(dataset))
    digest = hashlib.blake2b(digest_size=8)
    for value in _values(dataset):
        digest.update(value)
    yield f"the content of {name}", digest.hexdigest()


def _values(dataset: Any) -> Iterator[bytes]:
    """Yield samples of the values that a dataset holds, in the order of its attributes."""
    left, seen = [(dataset, 0)], {id(dataset)}
    for _ in range(_MOST_VALUES):
        if not left:
            return
        value, depth = left.pop()
        if isinstance(value, torch.Tensor):
            yield _of_tensor(value)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            yield _of_array(value)
        elif isinstance(value, list | tuple) and all(isinstance(one, int | float | str) for one in value[:_ELEMENTS]):
            yield repr((len(value), value[:: max(1, len(value) // _ELEMENTS)])).encode(errors="surrogatepass")
        elif depth < _DEPTH and (inner := _inner(value)):
            new = [one for one in inner if id(one) not in seen]
            seen.update(map(id, new))
            left.extend((one, depth + 1) for one in reversed(new))


def _inner(value: Any) -> list[Any]:
    if isinstance(value, Dataset):
        return [inner for _, inner in sorted(vars(value).items())]
    return list(value[:_ELEMENTS]) if isinstance(value, list | tuple) else []


def _of_tensor(value: torch.Tensor) -> bytes:
    if value.device.type != "cpu" or value.layout is not torch.strided or not value.numel():
        return repr((tuple(value.shape), value.dtype)).encode()
    flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach()[0].reshape(-1)
    sample = flat[:: max(1, flat.numel() // _ELEMENTS)]
    return repr((tuple(value.shape), value.dtype, sample.tolist())).encode()


def _of_array(value: Any) -> bytes:
    shape = getattr(value, "shape", ())
    if value.dtype.hasobject or not value.size:
        return repr((shape, value.dtype.str)).encode()
    sample: bytes = value.flat[:: max(1, value.size // _ELEMENTS)].tobytes()
    return repr((shape, value.dtype.str)).encode() + sample


def _short(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
