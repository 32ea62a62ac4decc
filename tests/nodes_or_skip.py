"""Nodes for a fixture: a test on a machine that cannot have them skips, with the reason."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.nodes import Nodes
from tests.nodes_space import NodesUnavailableError


@contextmanager
def nodes_or_skip(count: int) -> Iterator[Nodes]:
    """Yield so many nodes. Errors of a test with them are no reason to skip."""
    with ExitStack() as ends:
        try:
            made = ends.enter_context(Nodes(count))
        except NodesUnavailableError as error:
            pytest.skip(f"no nodes on this machine: {error}")
        yield made
