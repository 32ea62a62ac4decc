"""The iterator of a loader whose place is kept as it is without taskd (see `as_plain`), and the memory of its pass."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from taskd.adaptors.training.data.batch_samples import BatchSamples, sample_of
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.data.indices import put, states_of
from taskd.adaptors.training.data.loading import END, Meter
from taskd.adaptors.training.positions.rng import PackedRng
from taskd.runtime.worker.frameless import Call, Steps, around, stop


class KeptPlace(Protocol):
    """A loader's."""

    meter: Meter
    pass_: Any
    epochs: Epochs
    samples: BatchSamples | None

    def keep(self, batches: "PlainBatches") -> None:
        """It is asked for a batch."""
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """In which an iterator that was made anew gives its first batch."""
        ...

    @property
    def beside(self) -> tuple[Any, ...]:
        """What the loader tells of the batch that it has just given."""
        ...

    def put_beside(self, told: tuple[Any, ...]) -> None:
        """Have the loader tell that."""
        ...


class PlainBatches:
    """An iterator of a loader whose place is kept. What it does not know itself, the loader's own one answers.

    Args:
        place: the loader's.
        memory: of the pass. Whatever the loader's iterator holds must not hold this: that would be a cycle, and
            iterators end their workers when they die.
    """

    def __init__(self, place: KeptPlace, memory: "PassMemory") -> None:
        self.broken = False
        self.memory = memory
        self._taskd = place
        self._next = memory.skip
        self._handed: deque[Given] = deque()
        self._again: deque[Given] = deque()
        self._inner: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def _next_batch(self) -> Steps:
        place = self._taskd
        place.keep(self)
        if self._again:
            given = self._again.popleft()
            self.memory.load_again(given.before, given.after)
            place.put_beside(given.beside)
        else:
            given = yield from self._load()
        self._handed.append(given)
        place.pass_.handed = given.number + 1
        if place.samples is not None:
            place.samples.handed(place.pass_.number, place.pass_.handed, given.sample)
        return given.batch

    __next__ = around(Iterator.__next__, _next_batch)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("_taskd", "_inner"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    # What the place calls.

    def begin(self, inner: Iterator[Any]) -> None:
        """The loader's own iterator is made."""
        self._inner = inner

    def drop(self, now: bytes) -> None:
        """Load for nothing what was handed out, among random numbers of the past, and put the present ones back."""
        self.memory.elsewhere = now
        with self._taskd.quiet():
            for _ in range(self.memory.skip):
                if next(self._inner, self) is self:
                    break
        self.memory.go_back()

    def rewind(self, handed: int) -> "PlainBatches":
        """Hand out again what was handed out behind so many."""
        self._again = deque(known for known in (*self._handed, *self._again) if known.number >= handed)
        self._handed.clear()
        return self

    def goes_back_to(self, handed: int) -> bool:
        """Whether what was handed out behind so many is still there."""
        first = next((given.number for given in (*self._handed, *self._again)), self._next)
        return not self.broken and first <= handed <= self._next

    def forget_before(self, number: int) -> None:
        """Those batches are not handed out again."""
        while self._handed and self._handed[0].number < number:
            self._handed.popleft()
        self.memory.forget_before(number)

    # Inside.

    def _load(self) -> "Generator[Call | None, Any, Given]":
        place, memory = self._taskd, self.memory
        anew = memory.enter_past()
        before = memory.mark()
        try:
            with place.quiet() if anew else nullcontext():
                batch = yield from place.meter.fetching(partial(next, self._inner, END))
        except BaseException:
            self.broken = True  # a generator that was left by an error is over
            raise
        finally:
            memory.go_back()
        if batch is END:
            place.pass_.over = True
            if place.pass_.loop >= 0:
                place.epochs.end_loop()
            yield from stop()
        number, self._next = self._next, self._next + 1
        drew = memory.mark() != before
        if not drew:
            memory.drew_nothing()
        sample = b"" if place.samples is None else sample_of(batch)
        return Given(number, batch, before, memory.present() if drew else b"", place.beside, sample)


class Given(NamedTuple):
    """A batch that was handed out, and the random numbers before and after: the next one may have been loaded by it.

    Attributes:
        before: their mark.
        after: their states, if any was drawn.
        sample: sample of the batch as it was loaded. A step may change the batch in place.
    """

    number: int
    batch: Any
    before: bytes
    after: bytes
    beside: tuple[Any, ...]
    sample: bytes


class PassMemory:
    """The random numbers of one pass.

    Args:
        rng: the global generators.
        held: gives those that loader and samplers hold.
        skip: the number of its first batch: those before it were handed out by another process.
        ahead: the states of the generators before each of the batches from that one on was loaded; empty for one that
            drew none.
        asked: the states of those that are held, as the sampler was asked; empty if it has not been.
        in_process: whether batches are loaded in this process.
        iterable: whether what is skipped is loaded all the same.

    Attributes:
        elsewhere: where the generators go on, while they are in the past; None: they are in the present.
        total: how many batches there are in the pass.
        changes: of what `asked` and `before_each` tell.
    """

    def __init__(
        self,
        rng: PackedRng,
        held: Callable[[], list[torch.Generator]],
        skip: int,
        ahead: list[bytes],
        asked: list[bytes],
        *,
        in_process: bool,
        iterable: bool,
    ) -> None:
        self.skip = skip
        self.asked = asked
        self.total = float("inf")
        self.changes = 0
        self._held = held
        self.elsewhere: bytes | None = None
        self._rng = rng
        self._ahead = ahead
        self._in_process = in_process
        self._iterable = iterable
        self._made: bytes | None = None
        self._before: dict[int, bytes] = {}
        self._asked_now: list[int] = []
        self._in_past = False

    def indices(self, sampler: Any) -> Iterator[Any]:
        """The sampler's indices, from the first that is not skipped on, each among the random numbers that it had."""
        if self.asked:
            put(self._held(), self.asked)
        else:
            self.asked = states_of(self._held())
            self.changes += 1
        known = self.skip + len(self._ahead)
        for number, index in enumerate(sampler):
            if number >= known:
                self.go_back()
            elif number >= self.skip:
                self._in_past = True
                if states := self._ahead[number - self.skip]:
                    self.elsewhere = self.elsewhere or self._rng.capture()
                    self._rng.restore(states)
            elif not self._iterable:
                continue
            if self._in_process and number >= self.skip:
                self._before[number] = self._rng.capture()
                self._asked_now.append(number)
                self.changes += 1
            yield index

    def made_anew(self, now: bytes) -> None:
        """The iterator was made among random numbers of the past: the present ones are put back until it is asked."""
        self._made = self._rng.capture()
        self._rng.restore(now)

    def drew_nothing(self) -> None:
        """The batches that have been loaded since the iterator was asked have drawn nothing from the present on."""
        if not self._in_past:
            self._before.update((number, b"") for number in self._asked_now)
            self.changes += 1

    def enter_past(self) -> bool:
        """It is asked; whether for the first time since it was made anew."""
        self._asked_now.clear()
        self._in_past = self._made is not None
        made, self._made = self._made, None
        if made is not None:
            self.elsewhere = self._rng.capture()
            self._rng.restore(made)
        return made is not None

    def go_back(self) -> None:
        """The generators go on from the present."""
        now, self.elsewhere = self.elsewhere, None
        if now is not None:
            self._rng.restore(now)

    def mark(self) -> bytes:
        """That of the states which `present` returns."""
        if not self._in_process:
            return b""
        return self._rng.mark() if self.elsewhere is None else self._rng.mark_of(self.elsewhere)

    def present(self) -> bytes:
        """The states of the generators, apart from the past; none where batches are loaded elsewhere."""
        return (self.elsewhere or self._rng.capture()) if self._in_process else b""

    def load_again(self, before: bytes, after: bytes) -> None:
        """A batch is handed out again: the generators go on as by its loading, if they stand where they did then."""
        if after and before == self.mark():
            self._rng.restore(after)

    def before_each(self, number: int) -> list[bytes]:
        """The states of the generators before each batch from this one on was loaded."""
        return [states for known, states in sorted(self._before.items()) if known >= number]

    def forget_before(self, number: int) -> None:
        """Those batches are trained with."""
        for old in [known for known in self._before if known < number]:
            del self._before[old]
