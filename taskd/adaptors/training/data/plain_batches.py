"""Iterator of a loader that keeps its own random numbers (see `as_plain`), and the memory of its pass."""

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
    """The place of a loader, as its iterator uses it."""

    meter: Meter
    pass_: Any
    epochs: Epochs
    samples: BatchSamples | None

    def keep(self, batches: "PlainBatches") -> None:
        """Hold the iterator, which is asked for a batch."""
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """Return a context in which an iterator that was made anew gives its first batch."""
        ...

    @property
    def beside(self) -> tuple[Any, ...]:
        """Attributes that the loader has set for its newest batch."""
        ...

    def put_beside(self, told: tuple[Any, ...]) -> None:
        """Set these attributes of the loader again."""
        ...


class PlainBatches:
    """Iterator of a loader whose place is kept. It takes unknown attributes from the loader's own iterator.

    Args:
        place: the loader's place.
        memory: memory of the pass. Objects that the loader's iterator holds must not hold this iterator: that would be
            a cycle, and iterators end their workers when they die.
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

    # Called by the place.

    def begin(self, inner: Iterator[Any]) -> None:
        """Use `inner`, the loader's own iterator."""
        self._inner = inner

    def drop(self, now: bytes) -> None:
        """Load and drop the batches handed out before, with their random numbers; then restore the present ones."""
        self.memory.elsewhere = now
        with self._taskd.quiet():
            for _ in range(self.memory.skip):
                if next(self._inner, self) is self:
                    break
        self.memory.go_back()

    def rewind(self, handed: int) -> "PlainBatches":
        """Hand out again the batches behind the first `handed` ones."""
        self._again = deque(known for known in (*self._handed, *self._again) if known.number >= handed)
        self._handed.clear()
        return self

    def goes_back_to(self, handed: int) -> bool:
        """Return whether the batches behind the first `handed` ones are still there."""
        first = next((given.number for given in (*self._handed, *self._again)), self._next)
        return not self.broken and first <= handed <= self._next

    def forget_before(self, number: int) -> None:
        """Forget the batches before this one: they are not handed out again."""
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
            self.broken = True  # a generator that raised an error is exhausted
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
    """A batch that was handed out, and the random numbers around its loading: it may have loaded the next one too.

    Attributes:
        before: mark of the states before.
        after: states afterwards, if any number was drawn.
        sample: sample of the batch as it was loaded. A step may change the batch in place.
    """

    number: int
    batch: Any
    before: bytes
    after: bytes
    beside: tuple[Any, ...]
    sample: bytes


class PassMemory:
    """Random numbers of one pass.

    Args:
        rng: the global generators.
        held: returns the generators that loader and samplers hold.
        skip: number of its first batch: another process has handed out the batches before it.
        ahead: states of the global generators before the loading of each batch from the first on; empty for a batch
            that drew no number.
        asked: states of the held generators when the sampler was asked; empty if it has not been.
        in_process: whether batches are loaded in this process.
        iterable: whether skipped batches are loaded all the same.

    Attributes:
        elsewhere: the present states of the generators while they stand in the past; None while they stand in the
            present.
        total: number of batches in the pass.
        changes: count of the changes of `asked` and of the result of `before_each`.
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
        """Yield the sampler's indices from the first one that is not skipped, each with the random numbers it had."""
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
        """Restore the present random numbers until the first batch: the iterator was made among those of the past."""
        self._made = self._rng.capture()
        self._rng.restore(now)

    def drew_nothing(self) -> None:
        """Record that the batches loaded since the iterator was last asked have drawn no number."""
        if not self._in_past:
            self._before.update((number, b"") for number in self._asked_now)
            self.changes += 1

    def enter_past(self) -> bool:
        """Return to the past for the first batch of an iterator that was made anew. Return whether this is that one."""
        self._asked_now.clear()
        self._in_past = self._made is not None
        made, self._made = self._made, None
        if made is not None:
            self.elsewhere = self._rng.capture()
            self._rng.restore(made)
        return made is not None

    def go_back(self) -> None:
        """Return from the past: the generators go on from the present."""
        now, self.elsewhere = self.elsewhere, None
        if now is not None:
            self._rng.restore(now)

    def mark(self) -> bytes:
        """Return a mark of the states that `present` returns."""
        if not self._in_process:
            return b""
        return self._rng.mark() if self.elsewhere is None else self._rng.mark_of(self.elsewhere)

    def present(self) -> bytes:
        """Return the present states of the generators; empty if batches are not loaded in this process."""
        return (self.elsewhere or self._rng.capture()) if self._in_process else b""

    def load_again(self, before: bytes, after: bytes) -> None:
        """Repeat the draws of a batch that is handed out again, if the generators stand where they stood before it."""
        if after and before == self.mark():
            self._rng.restore(after)

    def before_each(self, number: int) -> list[bytes]:
        """Return the states of the generators before the loading of each batch from this one on."""
        return [states for known, states in sorted(self._before.items()) if known >= number]

    def forget_before(self, number: int) -> None:
        """Forget the states before the batches below this one, which have been trained with."""
        for old in [known for known in self._before if known < number]:
            del self._before[old]
