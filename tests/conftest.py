"""Fixtures for all tests: nothing may be left behind, and every started process is ended."""

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
    """Restore SIGINT. A shell ignores it for tests behind `&`, and every started process would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise shorter limits of tests to `--timeout`: in a lane with little processor time, all tests take longer."""
    least_s = float(config.getoption("timeout") or 0)
    for item in items:
        own = item.get_closest_marker("timeout")
        if own and own.args and own.args[0] < least_s:
            item.add_marker(pytest.mark.timeout(least_s), append=False)


def pytest_collection_finish() -> None:
    """Keep all present objects for the whole run: no collection inspects them again, and no fork copies them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_mark() -> Iterator[str]:
    """Yield the mark of a test's processes. Fail if it leaves threads, descriptors, processes or shared memory."""
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
    """Yield an empty directory of this user alone, with a path short enough for Unix sockets; remove it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="taskd-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def launcher(leak_mark: str, tmp_path: Path) -> Iterator[Launcher]:
    """Yield a launcher. It kills every process that still runs when the test ends."""
    starter = Launcher(tmp_path, leak_mark)
    yield starter
    starter.end_all()
