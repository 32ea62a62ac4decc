"""Damaged and hostile manifests and torch's indexes of checkpoints, against taskd's readers: only refusals may result.

    python -m tests.fuzz.manifests --count 1000000 --files 10000 --seed 1

Rules:

1. `run` reads bytes alone (`checkpoint_files.decode`, `checkpoint_index.find`); it does not open files.
   `run_files` lays whole checkpoints on a disk, with one file damaged, or with another object in its place. Then
   `load_latest` searches for the newest.
2. A number of a run is the same attack for the same seed. A failure is reported with the bytes.
3. A refusal is one line that is safe for a terminal. Accepted content keeps to its bounds.
"""

import argparse
import json
import logging
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.checkpoint import dump, load_latest
from taskd.adaptors.training.checkpoints.index import WantedTensor, find
from taskd.adaptors.training.state import TrainState
from taskd.errors import CheckpointError, RestoreError
from taskd.wire.bounds import NO_CONTROLS
from tests.fuzz import pickles, shapes
from tests.fuzz.damage import damaged

MANIFEST = files.Manifest(
    format=files.FORMAT,
    step=101,
    world_size=2,
    job_id="job",
    reason="rank 1: signal 9 (SIGKILL)",
    identity="0123456789abcd",
    written_at="2026-01-01T00:00:00.000+00:00",
    versions={"taskd": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    parts={"model": "Linear", "optimizer": "AdamW"},
    files={"__0_0.distcp": 4096, ".metadata": 900, "parts.msgpack": 300, "position-0.bin": 5000},
)
WANTED = {name: WantedTensor(shape, 4) for name, shape in pickles.SHAPES.items()}
TEXTS = (
    b"\\u0000",
    b"\\ud800",
    b"1e999",
    b"-1",
    b"9" * 400,
    b'"../x"',
    b"\x1b[2J",
    b"\xff",
    b"null",
    b"[" * 3000,
    b"{",
)
MOST_CHARS = 6000


def run(seed: int, count: int) -> Counter[str]:
    """Attack the readers of bytes so many times. Return counts of readers, each refused or accepted."""
    counts: Counter[str] = Counter()
    bases = pickles.bases(random.Random(seed))
    for number in range(count):
        dice = random.Random(f"{seed} {number}")
        if number % 2:
            data = _manifest(dice)
            counts[_attempt(seed, number, data, _read_manifest)] += 1
        else:
            data = pickles.attack(dice, bases)
            counts[_attempt(seed, number, data, _read_index)] += 1
    return counts


def _attempt(seed: int, number: int, data: bytes, read: Callable[[bytes], str]) -> str:
    try:
        return read(data)
    except BaseException as error:
        raise AssertionError(f"attack {number} of seed {seed}: {error!r} for {data[:5000]!r}") from error


def _read_manifest(data: bytes) -> str:
    read = files.decode(data)
    if isinstance(read, str):
        _expect_a_line(read)
        return "manifests refused"
    assert min(read.step, read.world_size - 1, *read.files.values(), 0) >= 0
    assert max(read.step, *read.files.values(), 0) < 1 << 53
    assert not any("/" in name or name in (".", "..") for name in read.files)
    texts = [read.job_id, read.reason, read.written_at, *read.parts, *read.parts.values(), *read.files]
    assert all(re.search(NO_CONTROLS, text) for text in texts), texts
    int(read.identity, 16)
    return "manifests accepted"


def _read_index(data: bytes) -> str:
    try:
        found = find(data, WANTED, pickles.SIZES)
    except RestoreError as error:
        _expect_a_line(str(error))
        return "indexes refused"
    assert not pickles.struck
    assert found.keys() == WANTED.keys()
    for piece in (piece for pieces in found.values() for piece in pieces):
        assert 0 <= piece.begin <= piece.begin + piece.length <= pickles.SIZES[piece.file]
    return "indexes accepted"


def _expect_a_line(text: str) -> None:
    assert text.isprintable(), text
    assert 0 < len(text) < MOST_CHARS, text


@cache
def _fields() -> dict[str, list[bytes]]:
    """Return each field of a manifest, honest and at each edge of its type and beyond, encoded."""
    known = msgspec.to_builtins(MANIFEST)
    found = {name: [msgspec.json.encode(value)] for name, value in known.items()}
    for _, value in shapes.changed(msgspec.inspect.type_info(files.Manifest), known):
        if isinstance(value, dict):
            for name in value.keys() & known.keys():
                if value[name] != known[name]:
                    found[name].append(msgspec.json.encode(value[name]))
    return found


def _manifest(dice: random.Random) -> bytes:
    """Return a manifest with a few fields at an edge, or damaged bytes, or both."""
    fields = _fields()
    odd = set(dice.choices([*fields], k=dice.choice((0, 1, 1, 2))))
    data = b"{%s}" % b",".join(
        b'"%s":%s' % (name.encode(), dice.choice(values) if name in odd else values[0])
        for name, values in fields.items()
    )
    return data if odd and dice.random() < 0.5 else damaged(data, dice, TEXTS)


# Whole checkpoints, on a disk.


def run_files(seed: int, count: int, folder: Path) -> Counter[str]:
    """Attack `load_latest` so many times with files in `folder`. Return counts of attacks and their results."""
    counts: Counter[str] = Counter()
    written, shelf = folder / "written", folder / "shelf"
    for step in (2, 3):
        state = _state(step)
        state.step = step
        dump(state._recovery, written, step=step, job_id="job", reason="")
    for number in range(count):
        dice = random.Random(f"{seed} {number} of files")
        shutil.rmtree(shelf, ignore_errors=True)
        shutil.copytree(written, shelf)
        name = dice.choice([*os.listdir(shelf / "step-3")])
        try:
            _spoil(shelf / "step-3", name, dice)
            counts[f"{name}: {_load(shelf)}"] += 1
        except BaseException as error:
            raise AssertionError(f"attack {number} of seed {seed} on {name}: {error!r}") from error
    return counts


def _load(shelf: Path) -> str:
    try:
        return f"step {load_latest(_state(7), shelf)}"
    except CheckpointError as error:
        _expect_a_line(str(error))
        return "an error"


def _spoil(path: Path, name: str, dice: random.Random) -> None:
    file = path / name
    if dice.random() < 0.1:
        file.unlink()
        dice.choice((os.mkfifo, os.mkdir, lambda at: at.symlink_to(at.name), lambda at: at.symlink_to("/dev/zero")))(
            file
        )
        return
    data = file.read_bytes()
    file.write_bytes(
        damaged(data, dice, TEXTS if name == files.MANIFEST else (b"\0", b"\xff" * 8, b"PK\3\4", b"\x85" * 99))
    )
    if name != files.MANIFEST:
        manifest = json.loads((path / files.MANIFEST).read_bytes())
        manifest["files"][name] = file.stat().st_size
        (path / files.MANIFEST).write_text(json.dumps(manifest))


def _state(seed: int) -> TrainState:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    sampler: Any = torch.utils.data.DistributedSampler(range(8), num_replicas=1, rank=0)  # type: ignore[arg-type]
    return TrainState(
        model=model, optimizer=optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2), sampler=sampler
    )


# The command line.


def _measured(act: Callable[[], Counter[str]]) -> Iterator[tuple[str, Any]]:
    began_s, before_kb = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield from sorted(act().items())
    yield "seconds", round(time.monotonic() - began_s, 1)
    yield "grown_mb", round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024, 1)


def main() -> int:
    """Run the attacks. Return 0 if there were only refusals, and valid input was accepted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    run(args.seed - 1, 2000)  # objects that are made once exist before memory is measured
    print(json.dumps({"seed": args.seed, **dict(_measured(lambda: run(args.seed, args.count)))}), flush=True)
    if args.files:
        logging.disable()
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as folder:
            run_files(args.seed - 1, 50, Path(first))
            found = dict(_measured(lambda: run_files(args.seed, args.files, Path(folder))))
        print(json.dumps({"seed": args.seed, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
