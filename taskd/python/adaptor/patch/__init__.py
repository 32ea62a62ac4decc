"""Import hook that puts taskd into torchrun: the sed line and torch's plugin group import this module.

Rules:

1. It is inert unless TASKD_PROCESS_ENABLE is `on`, and it never raises: see `taskd.adaptors.torchrun.install`.
"""

from taskd.adaptors.torchrun.install import install
from taskd.adaptors.torchrun.install import rendezvous_handlers as handlers

__all__ = ["handlers"]

install()
