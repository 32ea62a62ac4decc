"""Fixtures for comparing torchrun with itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.torchrun.twins import Launch, Pair, Seen, Twin

Play = Callable[[Launch], Pair]


@pytest.fixture(scope="package")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Twin, Twin]]:
    """Yield a warm torchrun without taskd, and one with it."""
    folder = tmp_path_factory.mktemp("twins")
    with ExitStack() as stack:
        stock, taskd = Twin(folder / "stock", taskd=False), Twin(folder / "taskd", taskd=True)
        stack.callback(taskd.close)
        stack.callback(stock.close)
        stock.await_ready()
        taskd.await_ready()
        yield stock, taskd


@pytest.fixture
def play(twins: tuple[Twin, Twin], leak_mark: str) -> Play:
    """Return a function that plays a job under both at once."""
    stock, taskd = twins

    def play(job: Launch) -> Pair:
        if lacks := job.lacks():
            pytest.skip(f"this torchrun has no {', '.join(lacks)}")
        with ExitStack() as stack:  # both are waited for, whatever happens to the first
            taskds = taskd.begin(job, leak_mark)
            seen: list[Seen] = []
            stack.callback(lambda: seen.append(taskd.end(taskds)))
            stocks = stock.end(stock.begin(job, leak_mark))
        return Pair(stocks, *seen)

    return play
