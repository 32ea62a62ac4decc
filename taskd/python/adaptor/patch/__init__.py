"""Importing this puts taskd into torchrun. It is what the sed line and torch's plugin group import.

Rules:

1. Inert unless TASKD_PROCESS_ENABLE is `on`, and it never raises: see `taskd.adaptors.torchrun.install`.
"""

from taskd.adaptors.torchrun.install import install
from taskd.adaptors.torchrun.install import rendezvous_handlers as handlers

__all__ = ["handlers"]

install()
