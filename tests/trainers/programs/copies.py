"""Copies of a state that no other rank has, as a program of a scene waits for them."""

import time

from tests.trainers.programs import moments

_LOOK_S = 0.001


def await_copies() -> None:
    """As where a step takes longer than a copy: a kill finds copies of the newest step that was due."""
    if moments.PLAIN:
        return
    from taskd.adaptors.training.runtime import current
    from taskd.runtime.worker.pulse import NEVER

    runtime = current()
    if runtime is None or runtime.session is None:
        return
    backups = runtime.session.recovery.backups
    while backups is not None and backups.next == NEVER:
        runtime.leave_wait()
        time.sleep(_LOOK_S)
