"""Values outside of the state that were adopted into it: copied, put back, and sent to a new process."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.parts.taken_in import Taken, TakenIn
from taskd.errors import RestoreError
from tests.training import taken_elsewhere
from tests.training.taken_elsewhere import count as count_elsewhere

total = 0
both = 1


def use(*_: Any) -> None:
    """Refer to a variable."""


class Progress:
    """Object of a script."""

    kinds = 3

    def __init__(self) -> None:
        self.seen = 3
        self.counts: dict[str, Any] = {"x": 1, "rows": [1, 2]}
        self.mean: Any = np.zeros(3)

    @property
    def twice(self) -> int:
        """Property that a walk must not call."""
        raise AssertionError("a property was called")


class Script:
    """Training function with all objects that it uses, as one process has it."""

    def __init__(self) -> None:
        global total  # noqa: PLW0603 - as a script has it
        total = 0
        progress = Progress()
        rows = 7
        drawn = torch.Generator().manual_seed(3)
        dice, numpy, old = random.Random(4), np.random.default_rng(5), np.random.RandomState(6)
        twister = np.random.Generator(np.random.MT19937(7))
        system = random.SystemRandom()
        generators: dict[str, Any] = {"drawn": drawn, "dice": dice, "numpy": numpy, "old": old}
        self.progress, self.generators = progress, generators

        def train() -> None:
            global total  # noqa: PLW0603
            nonlocal rows
            total += 1
            rows += 1
            progress.seen += 1
            progress.counts["x"] += 1
            progress.counts["rows"][1] += 1
            progress.mean += 1
            use(twister, system, both)
            count_elsewhere()

        self.train = train
        self.rows: Callable[[], int] = lambda: rows

    @property
    def now(self) -> list[Any]:
        """Return all its values."""
        own = self.progress
        return [total, self.rows(), own.seen, own.counts["x"], own.counts["rows"][1], own.mean.tolist()]

    def draw(self) -> list[float]:
        """Return the next number of each generator."""
        made = self.generators
        return [
            float(torch.rand(1, generator=made["drawn"])),
            made["dice"].random(),
            made["numpy"].random(),
            made["old"].rand(),
        ]


NUMBERS = [
    "total",
    "rows",
    "progress.seen",
    "progress.counts['x']",
    "progress.counts['rows'][1]",
    "progress.mean",
]
GENERATORS = [f"generators['{name}']" for name in ("drawn", "dice", "numpy", "old")]


def taken(script: Script, paths: list[str]) -> TakenIn:
    found = TakenIn()
    found.enter(script.train)
    assert list(found.candidates(paths)) == paths
    found.take(paths)
    return found


def test_numbers_are_put_back() -> None:
    script = Script()
    found = taken(script, NUMBERS)
    was, array = script.now, script.progress.mean
    assert found.standing == NUMBERS
    script.train()
    assert script.now != was
    assert not found.standing
    found.put_back()
    assert script.now == was
    assert script.progress.mean is array
    script.train()
    found.committed()
    then = script.now
    script.train()
    found.put_back()
    assert script.now == then


def test_generators_are_put_back() -> None:
    script = Script()

    def train() -> None:
        use(script)

    found = TakenIn()
    found.enter(train)
    paths = [f"script.{path}" for path in GENERATORS]
    found.take(found.candidates(paths))
    assert found.standing == paths
    drawn = script.draw()
    assert not found.standing
    found.put_back()
    assert script.draw() == drawn


def test_a_new_process_gets_them() -> None:
    donor, newcomer = Script(), Script()
    found = taken(donor, NUMBERS[1:])
    donor.train()
    found.committed()
    given = TakenIn()
    given.enter(newcomer.train)
    assert not given.any
    given.put(found.sent())
    assert newcomer.now[1:] == donor.now[1:]
    assert given.any
    newcomer.train()
    given.put_back()
    assert newcomer.now[1:] == donor.now[1:]


def training_with(generator: Any) -> Callable[[], None]:
    """Return a training function that refers to the generator."""

    def train() -> None:
        use(generator)

    return train


@pytest.mark.parametrize("name", ["drawn", "dice", "numpy", "old"])
def test_a_new_process_gets_generators(name: str) -> None:
    donor, newcomer = Script(), Script()
    states = []
    for script in (donor, newcomer):
        made = script.generators[name]

        states.append(TakenIn())
        states[-1].enter(training_with(made))
    donor.draw()
    states[0].take(["generator"])
    states[1].put(states[0].sent())
    assert newcomer.generators[name] is made
    place = list(donor.generators).index(name)
    assert newcomer.draw()[place] == donor.draw()[place]


def test_what_has_no_place_is_left() -> None:
    script = Script()
    found = TakenIn()
    others = ["nothing", "progress.nothing", "progress.kinds", "progress.twice", "progress.counts", "progress.seen.x"]
    others += ["progress.counts['y']", "progress.counts['rows'][7]", "total[0]", "twister", "system"]
    others += ["(1)", "f(", "a\0"]
    assert not found.candidates(["total"])
    found.enter(script.train)
    assert not found.candidates(others)
    assert list(found.candidates([*others, "total"])) == ["total"]


def test_a_name_of_two_variables_has_no_place() -> None:
    """A function in another module of the script's has a global variable of the same name."""
    found = TakenIn()
    found.enter(Script().train)
    assert taken_elsewhere.both != both
    assert not found.candidates(["both"])


def test_a_process_that_has_no_such_thing_takes_nothing() -> None:
    found = taken(Script(), NUMBERS)

    def train() -> None: ...

    given = TakenIn()
    given.enter(train)
    with pytest.raises(ValueError, match="a peer changes total, and this process has no such thing there"):
        given.put(found.sent())


@pytest.mark.parametrize(
    "sent",
    [
        ("a." * 100_000 + "a", tree.pack(1)),
        ("-" * 100_000 + "1", tree.pack(1)),
        ("total", b""),
        ("total", b"\xc1"),
        ("total", tree.pack([1, 2])),
        ("total", tree.pack("three")),
        ("generators['dice']", b"\xff\xfe"),
        ("generators['dice']", b"(3, "),
        ("generators['dice']", b"-" * 100_000 + b"1"),
        ("generators['dice']", b"{}"),
        ("generators['numpy']", b"[]"),
        ("generators['old']", b"7"),
        ("generators['drawn']", b"no hexadecimal"),
        ("generators['drawn']", b"00"),
    ],
    ids=lambda sent: f"{sent[0][:20]} {sent[1][:10]!r}",
)
def test_what_a_peer_may_not_send(sent: Taken) -> None:
    """Each value raises an error that `restore` expects, and changes nothing."""
    script = Script()
    given = TakenIn()
    given.enter(script.train)
    with pytest.raises((RestoreError, RuntimeError, ValueError, LookupError, TypeError, OverflowError)):
        given.put([sent])
    assert total == 0
    assert script.draw() == Script().draw()


def test_what_has_gone_since_the_commit_is_passed_over() -> None:
    script = Script()
    found = taken(script, NUMBERS)
    del script.progress.counts["x"]
    script.progress.counts["rows"] = []
    found.put_back()
    assert "x" not in script.progress.counts
    assert not {"progress.counts['x']", "progress.counts['rows'][1]"} & set(found.standing)


def test_another_function_begins_without_any() -> None:
    script = Script()
    found = taken(script, NUMBERS)
    found.enter(script.train)
    assert found.any
    found.enter(Script().train)
    assert not found.any
