"""torch's index of a checkpoint, and taskd's outline of it, from an attacker who wants to run code here."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.checkpoints.pickle_text import Name, read_pickle
from taskd.adaptors.training.positions.rng import RngCapture
from taskd.errors import CheckpointError, RestoreError
from tests.training.checkpoint_attack import LONG_S, Attack, Strike
from tests.training.checkpoint_state import make

pytestmark = [pytest.mark.timed, pytest.mark.timeout(2 * LONG_S)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_index_that_runs_code(attack: Attack, mark: Path, protocol: int) -> None:
    attack.place(".metadata", pickle.dumps(Strike(mark), protocol))
    attack.fails("that no index of torch's has" if protocol < 4 else "found the name posix.mkdir, which no index")


def test_an_index_that_runs_code_and_is_an_index(attack: Attack, mark: Path) -> None:
    index = attack.index()
    index.planner_data = {"model": Strike(mark)}
    attack.place(".metadata", pickle.dumps(index))
    attack.fails("found the name posix.mkdir, which no index of torch's has")


def test_an_index_of_one_rank_that_runs_code(attack: Attack, mark: Path) -> None:
    """torch searches for it if it cannot read the common index."""
    attack.place(".metadata", b"not this one")
    attack.place("__0.metadata", pickle.dumps(Strike(mark)))
    attack.fails(".metadata: byte 1 of 12: ")


def test_a_tensor_that_the_index_calls_an_object(attack: Attack, mark: Path) -> None:
    """torch reads objects with `torch.load(weights_only=False)`."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    index = attack.index()
    torch.save(Strike(mark), attack.path / "__1_0.distcp")
    data = (attack.path / "__1_0.distcp").read_bytes()
    attack.place("__1_0.distcp", data)
    info = type(next(iter(index.storage_data.values())))
    for name in [*index.state_dict_metadata]:
        index.state_dict_metadata[name] = BytesStorageMetadata()
        index.storage_data[MetadataIndex(name)] = info("__1_0.distcp", 0, len(data))
    attack.place(".metadata", pickle.dumps(index))
    attack.fails("no TensorStorageMetadata where one has to be")


def test_data_that_runs_code(attack: Attack, mark: Path) -> None:
    """A tensor's own bytes are read with `torch.load(weights_only=True)`."""
    index = attack.index()
    torch.save([Strike(mark), torch.zeros(100_000)], attack.path / "__0_0.distcp")
    data = (attack.path / "__0_0.distcp").read_bytes()
    for place_of in index.storage_data.values():
        place_of.offset, place_of.length = 0, len(data)
    attack.place("__0_0.distcp", data)
    attack.place(".metadata", pickle.dumps(index))
    attack.fails("torch finds no tensors in its data")


def forge_place(attack: Attack, **fields: Any) -> None:
    index = attack.index()
    for key, value in fields.items():
        for place_of in index.storage_data.values():
            setattr(place_of, key, value)
    attack.place(".metadata", pickle.dumps(index))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"relative_path": "../step-2/__0_0.distcp"}, "does not lie within '../step-2/__0_0.distcp'"),
        ({"relative_path": "/proc/self/mem"}, "does not lie within '/proc/self/mem'"),
        ({"relative_path": "\x1b[2J\n"}, "does not lie within '\\x1b[2J\\n'"),
        ({"relative_path": None}, "found no place of"),
        ({"offset": -1}, "does not lie within"),
        ({"offset": 1 << 62}, "does not lie within"),
        ({"length": 1 << 70}, "does not lie within"),
        ({"length": 0}, "does not lie within"),
        ({"length": 1.5}, "an operation that no index of torch's has"),
        ({"transform_descriptors": ["stream.zstd/1"]}, "is compressed"),
    ],
)
def test_an_index_that_leads_elsewhere(attack: Attack, fields: dict[str, Any], reason: str) -> None:
    forge_place(attack, **fields)
    attack.fails(reason)


def test_an_index_with_holes(attack: Attack) -> None:
    """Without data for a region, old memory content would become weights."""
    index = attack.index()
    for tensor in index.state_dict_metadata.values():
        getattr(tensor, "chunks", []).clear()
    attack.place(".metadata", pickle.dumps(index))
    attack.fails("are not a tensor of shape")


BOMBS = {
    "a place in the memo that needs 32 GB": b"\x80\x04Nr\xff\xff\xff\xff.",
    "a tuple of a depth that overflows the stack": b"\x80\x04)" + b"\x85" * 1_000_000 + b".",
    "a key of such a depth": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
    "marks alone": b"\x80\x04" + b"(" * 1_000_000,
    "a text that needs 4 GB": b"\x80\x04X\xff\xff\xff\xff",
    "an endless frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "a large number": b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".",
    "a list in itself": b"\x80\x04]\x94h\x00a.",
    "a call, in an old way": b"cos\nsystem\n(S'true'\ntR.",
    "a call": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "a call of what is known": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93)R.",
    "copyreg's registry": b"\x80\x04\x82\x01.",
    "a persistent id": b"\x80\x04\x8c\x01xQ.",
    "an attribute for torch's own class": b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x08Metadata\x93"
    b"N}\x8c\x08__init__Ns\x86b.",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_an_index_that_is_a_bomb(attack: Attack, data: bytes) -> None:
    attack.place(".metadata", data)
    attack.fails("it cannot be read: ")
    dump(make(1)._recovery, attack.shelf, step=0, job_id="job", reason="torch's own classes are as they were")


# The parts.


def test_an_outline_with_names_that_a_terminal_obeys(attack: Attack) -> None:
    outline = msgspec.msgpack.encode({"\x1b[2J\n\0" + "x" * 100_000: []})
    attack.place("parts.msgpack", outline)
    with pytest.raises(CheckpointError, match="has the parts") as caught:
        load_latest(make(5), attack.shelf)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize(
    "rows",
    [
        [],
        "rows",
        [[[], ["t", ["model.x", "load", [1]]]]],
        [[[], ["t", ["model.x", "float32", [1 << 60]]]]],
        [[[], ["t", ["model.x", "float32", [-5]]]]],
        [[[], ["t", ["model.x", "float32", 5]]]],
        [[[], ["d", [[["l", []], None]]]]],
        [[[], ["?"]]],
        [[[], ["?", None]]],
        [[[[]], None]],
    ],
    ids=repr,
)
def test_an_outline_of_nonsense(attack: Attack, rows: Any) -> None:
    known = msgspec.msgpack.decode((attack.path / "parts.msgpack").read_bytes())
    attack.place("parts.msgpack", msgspec.msgpack.encode({**known, "scheduler": rows}))
    attack.fails("it cannot be read: ")


def test_an_outline_that_runs_code(attack: Attack, mark: Path) -> None:
    known = msgspec.msgpack.decode((attack.path / "parts.msgpack").read_bytes())
    rows = [[[], ["p", pickle.dumps(Strike(mark))]]]
    attack.place("parts.msgpack", msgspec.msgpack.encode({**known, "scheduler": rows}))
    attack.fails("a part of the state holds an object that cannot be sent safely")


def test_random_numbers_beyond_their_state() -> None:
    """numpy accepts any position and reads there, which killed the process."""
    import numpy

    numpy.random.random()
    states = [bytes(state) for state in RngCapture().capture()]
    states[2] = states[2][:-4] + (1_000_000).to_bytes(4, "little")
    with pytest.raises(RestoreError, match="position 1000000 is outside"):
        RngCapture().restore(states)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "float8_e4m3fn"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13
        ("builtins", "getattr"),  # members of enumerations, Python 3.11.0
    ],
)
def test_names_that_an_index_of_torch_has(module: str, name: str) -> None:
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    assert read_pickle(b"\x80\x04" + texts + b"\x93.") == Name(f"{module}.{name}")


@pytest.mark.parametrize("name", ["load", "serialization.load", "Size.__class__", "hub", "float32\n", "boolé"])
def test_names_that_it_does_not_have(name: str) -> None:
    text = name.encode()
    with pytest.raises(RestoreError, match="found the name torch"):
        read_pickle(b"\x80\x04\x8c\x05torch\x8c" + bytes([len(text)]) + text + b"\x93.")
