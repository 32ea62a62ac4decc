"""The trainer's loader of training batches. It goes on in the middle of a pass, in the order of the plain library.

Rules:

1. Nothing is changed in an undisturbed pass: same iterator, same batches, same random numbers, drawn at the same time.
2. A survivor goes on with its living iterator. The batches given since the commit are given again, each with the random
   numbers after its loading, if the loading drew any.
3. Any other process opens the pass with the random numbers of its first opening. It passes over the indices of the
   finished batches without loading them. It loads the batch that accelerate's loader holds ahead with the random
   numbers of that batch's loading.
4. The batches of an iterable dataset are loaded and dropped. If rank 0 loads for all, all open the pass anew together.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader

from taskd.adaptors.training.data.passed_over import passed_over
from taskd.adaptors.training.positions.rng import PackedRng


class HfLoader:
    """Stand-in for the loader given to `_run_epoch`; other calls are forwarded to that loader.

    Args:
        whole: that loader.
        random: of this process.
        skip: transformers' own `skip_first_batches`.

    Attributes:
        loader: that loader, or the rest of it that transformers has made when it resumed from a checkpoint.
        skipped: number of batches that the rest leaves out.
        recorded: random numbers of the pass of the last recorded position: at its opening, and at its newest batch's
            loading.
    """

    def __init__(self, whole: Any, random: PackedRng, skip: Callable[[Any, int], Any]) -> None:
        self.loader = whole
        self.skipped = 0
        self.recorded: tuple[bytes, bytes] = (b"", b"")
        self._whole, self._skip = whole, skip
        self._random = random
        self._epoch = -1
        self._pass: HfPass | None = None
        self._next: HfPass | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> "HfPass":
        self._pass, self._next = self._next or HfPass(self.loader, self._random), None
        return self._pass

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def moments(self) -> tuple[bytes, bytes]:
        """Random numbers recorded of the present pass: as it was opened, and as it loaded last."""
        return self.recorded if self._pass is None else (self._pass.opened, self._pass.loaded)

    def begin(self, epoch: int) -> None:
        """Let the next iterator be that of another epoch."""
        self.close()
        self._epoch = epoch
        self.skip(0)

    def close(self) -> None:
        """End the present pass."""
        if self._pass is not None:
            self._pass.close()
        self._pass = self._next = None

    def skip(self, count: int) -> "HfLoader":
        """Leave out the first batches, as transformers does when it resumes from a checkpoint."""
        if count != self.skipped:
            self.loader, self.skipped = self._skip(self._whole, count) if count else self._whole, count
        return self

    def commit(self) -> None:
        """Record that all batches given so far have been trained with."""
        if self._pass is not None:
            self._pass.commit()

    def go_on(self, epoch: int, done: int, skipped: int) -> None:
        """Let the next iterator go on after `done` batches of the epoch, of which the first `skipped` were left out."""
        now, self._pass = self._pass, None
        self.skip(skipped)
        behind = done - skipped
        if epoch == self._epoch and now is not None and not _loads_for_all(self.loader) and now.go_back(behind):
            self._next = now
        else:
            if now is not None:
                now.close()
            self._next = HfPass(self.loader, self._random, behind, self.recorded if behind else (b"", b""))
        self._epoch = epoch


class HfPass:
    """One pass over the loader.

    Attributes:
        opened: the random numbers with which it was opened.
        loaded: those with which its newest batch was loaded; empty if that drew none.
    """

    def __init__(
        self, loader: Any, random: PackedRng, behind: int = 0, moments: tuple[bytes, bytes] = (b"", b"")
    ) -> None:
        self.opened, self.loaded = moments
        self._loader = loader
        self._random = random
        self._behind = behind
        self._batches: Iterator[Any] | None = None
        self._committed = behind
        self._given: deque[tuple[Any, bytes]] = deque()
        self._again: deque[tuple[Any, bytes]] = deque()

    def __iter__(self) -> "HfPass":
        return self

    def __next__(self) -> Any:
        if self._again:
            batch, after = self._again.popleft()
            self._put(after)
        else:
            if self._batches is None:
                self._batches = self._open()
            before = self._random.mark()
            batch = next(self._batches)
            after = b"" if self._random.mark() == before else self._random.capture()
        self._given.append((batch, after))
        return copy.copy(batch)  # the given batch is whole again, whatever the training takes out of the copy

    def commit(self) -> None:
        """Forget the batches given so far: nobody will request them again."""
        self._committed += len(self._given)
        self._given.clear()

    def go_back(self, done: int) -> bool:
        """Give the batches after the first `done` again; return False if one of them is not held here any more."""
        held = [*self._given, *self._again]
        passed = done - self._committed
        if not 0 <= passed <= len(held):
            return False
        self._committed, self._given, self._again = done, deque(), deque(held[passed:])
        if self._batches is not None and hasattr(self._loader, "gradient_state"):
            self._loader.gradient_state._add_dataloader(self._loader)
        return True

    def close(self) -> None:
        """Close the batches, so the loader's workers end: nothing more is requested."""
        if isinstance(self._batches, GeneratorType):
            self._batches.close()
        self._batches = None

    def _put(self, states: bytes) -> None:
        if states:
            self._random.restore(states)

    def _open(self) -> Iterator[Any]:
        loader = self._loader
        if _loads_for_all(loader):
            return self._open_together()
        if isinstance(getattr(loader, "base_dataloader", None), DataLoader):
            base = loader.base_dataloader
            loader.base_dataloader = _Opening(base, lambda: self._load(base, ahead=True), loader)
            return iter(loader)
        return self._load(loader, ahead=False)

    def _open_together(self) -> Iterator[Any]:
        loader, now = self._loader, self._random.capture()
        if not self._behind:
            self.opened = now
            yield from loader
            return
        kept, loader.skip_batches = loader.skip_batches, self._behind
        self._put(self.opened)
        batches = iter(loader)
        first = next(batches, None)
        self._put(now)
        loader.skip_batches = kept
        if first is not None:
            yield first
            yield from batches

    def _load(self, base: Any, *, ahead: bool) -> Iterator[Any]:
        """Yield the batches of torch's loader; `ahead`: the caller holds one batch more than was given."""
        now = self._random.capture()
        if self._behind:
            self._put(self.opened)
            batches = _behind(base, self._behind)
            self._put(self.loaded if ahead else now)
        else:
            self.opened = now
            batches = iter(base)
        first = ahead and self._behind > 0
        while True:
            before, mark = self._random.capture(), self._random.mark()
            batch = next(batches, _END)
            self.loaded = b"" if self._random.mark() == mark else before
            if first:
                self._put(now)
                first = False
            if batch is _END:
                return
            yield batch


_END = object()


class _Opening:
    """Stand-in for torch's loader inside accelerate's until that requests an iterator."""

    def __init__(self, base: Any, load: Any, outer: Any) -> None:
        vars(self).update(_base=base, _load=load, _outer=outer)

    def __iter__(self) -> Iterator[Any]:
        self._outer.base_dataloader = self._base
        batches: Iterator[Any] = self._load()
        return batches

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_base"], name)

    @property
    def __class__(self) -> Any:
        return type(vars(self)["_base"])

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise AttributeError("it is torch's loader for a moment only")


def _behind(base: Any, count: int) -> Iterator[Any]:
    """Return an iterator of a loader that has passed over so many batches."""
    with passed_over(base, count) as passed:
        found: Iterator[Any] = iter(base)
    for _ in range(0 if passed else count):
        next(found, None)
    return found


def _loads_for_all(loader: Any) -> bool:
    """Return whether rank 0 alone loads, and sends the others their parts."""
    return type(loader).__name__ == "DataLoaderDispatcher"
