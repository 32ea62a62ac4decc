"""The twins of the torchrun tests: one without taskd, and one with it."""

from tests.torchrun.conftest import play, twins

__all__ = ["play", "twins"]
