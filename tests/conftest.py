"""Fixtures for all tests: nothing may be left behind, and every process that is started is ended."""

import gc
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leaks
from tests.launch import Launcher


def pytest_configure() -> None:
    """A shell that runs the tests behind `&` ignores SIGINT, and all that they start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test has a shorter limit than `--timeout` says: in a lane with little processor time all take longer."""
    least_s = float(config.getoption("timeout") or 0)
    for item in items:
        own = item.get_closest_marker("timeout")
        if own and own.args and own.args[0] < least_s:
            item.add_marker(pytest.mark.timeout(least_s), append=False)


def pytest_collection_finish() -> None:
    """All that is there now stays for the whole run: no collection looks at it again, and no fork copies it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_mark() -> Iterator[str]:
    """Fail a test that leaves threads, descriptors, processes or shared memory behind. Yields the mark it looks for."""
    mark = uuid.uuid4().hex
    outer = os.environ.get(leaks.MARK)
    os.environ[leaks.MARK] = mark
    before = leaks.take(mark)
    try:
        yield mark
        found = leaks.leaks(before, mark)
    finally:
        if outer is None:
            del os.environ[leaks.MARK]
        else:
            os.environ[leaks.MARK] = outer
    if found:
        pytest.fail("left behind:\n" + "\n".join(f"  {line}" for line in found), pytrace=False)


@pytest.fixture
def run_dir(leak_mark: str) -> Iterator[Path]:
    """An empty directory of this user alone, with a path short enough for Unix sockets in it; gone after the test."""
    path = Path(tempfile.mkdtemp(prefix="taskd-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def launcher(leak_mark: str, tmp_path: Path) -> Iterator[Launcher]:
    """Starts processes; whatever still runs when the test ends is killed."""
    starter = Launcher(tmp_path, leak_mark)
    yield starter
    starter.end_all()
