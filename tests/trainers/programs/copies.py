"""A wait of a scene's program for copies of a state that no other rank has."""

import time

from tests.trainers.programs import moments

_LOOK_S = 0.001


def await_copies() -> None:
    """Wait until due copies are made, as in a step that is longer than a copy. A kill then finds the newest ones."""
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
