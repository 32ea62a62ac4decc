"""The encoding keeps types and bits, and never builds objects of other types."""

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from taskd.adaptors.training import tree
from taskd.errors import RestoreError

VALUES: list[Any] = [
    None,
    True,
    -(1 << 63),
    1 << 80,
    0.1,
    float("inf"),
    "text",
    b"bytes",
    [1, [2]],
    (1, (2,)),
    {0: "a", "b": (1.5, None), (1, 2): []},
    OrderedDict([("z", 1), ("a", 2)]),
    Counter({3: 1}),
    deque([1, 2.5], maxlen=2),
    defaultdict(float, {"a": 1.5}),
    defaultdict(None, {1: []}),
    {"betas": (0.9, 0.999), "params": [0, 1]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_keep_their_types(value: Any) -> None:
    back = tree.unpack(tree.pack(value))
    assert back == value
    assert repr(back) == repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_keep_their_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape, dtype=dtype)
    back = tree.unpack(tree.pack({"t": value}))["t"]
    assert back.dtype == dtype
    assert back.shape == value.shape
    assert torch.equal(back, value)


def test_a_strided_tensor_is_sent_by_its_values() -> None:
    value = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(tree.unpack(tree.pack(value)), value)


NUMBERS: list[Any] = [
    np.float64(0.1),
    np.float32(-3),
    np.bool_(True),
    np.int64(-4),
    np.uint8(7),
    np.complex64(1 + 2j),
    np.longdouble("1.1"),
    np.datetime64("2026-11-28"),
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 3), dtype=np.float16),
    np.array(3.5),
]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_numbers_of_numpy_keep_dtype_and_bytes(value: Any) -> None:
    back = tree.unpack(tree.pack({"best": [value]}))["best"][0]
    assert type(back) is type(value)
    assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())


def test_what_came_can_be_written_to() -> None:
    back = tree.unpack(tree.pack(np.zeros(3)))
    back += 1
    assert back.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "body", [["O", None, b"12345678"], ["<f8", None, b"123"], ["<f8", [3], b""], ["?!", None, b""]]
)
def test_numbers_of_numpy_that_are_none_are_refused(body: list[Any]) -> None:
    with pytest.raises(RestoreError):
        tree.unpack(msgspec.msgpack.encode(["n", body]))


class Mischief:
    done = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Mischief, "done", True))


def test_foreign_objects_are_refused() -> None:
    for data in (tree.pack([Mischief()]), msgspec.msgpack.encode(["p", pickle.dumps(Mischief())])):
        with pytest.raises(RestoreError, match="cannot be sent safely"):
            tree.unpack(data)
    assert not Mischief.done


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["t", [1]]), msgspec.msgpack.encode([1, 2, 3])])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RestoreError):
        tree.unpack(data)


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(RestoreError, match="'float7'"):
        tree.dtype_of("float7")
    with pytest.raises(RestoreError, match="'load'"):
        tree.dtype_of("load")
