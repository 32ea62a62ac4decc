"""Checkpoints that taskd writes for a script during training, and the return to one in living processes.

Rules:

1. `save` is collective, and belongs after a commit. When it returns, the checkpoint is complete.
2. Only checkpoints written since the resilient function was entered count for a return. The script may have others of
   its own, even newer ones.
3. At a fault that leaves nothing else, all ranks read the same checkpoint before any of them changes its state. A new
   process gets its path from the others.
"""

import os
from pathlib import Path

from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.checkpoint import dump, read
from taskd.adaptors.training.checkpoints.content import Draft
from taskd.adaptors.training.checkpoints.ranks import Ranks
from taskd.adaptors.training.keeping import SavedCheckpoint
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.state import TrainState
from taskd.errors import CheckpointError, RestoreError
from taskd.runtime.worker import worker


def save(state: TrainState, path: "str | os.PathLike[str]") -> Path:
    """Write the last committed step to the directory `path` as `step-N`; return its path. `load_latest` finds it.

    Collective: all ranks call it after the same commit, best by `state.after_commit(…, every=N)`. The directory is on a
    disk that all nodes share. A fault may leave neither a replica nor copies of a rank's state. All ranks then go back
    to the newest checkpoint written by `save`, without a restart.

    Raises:
        CheckpointError: a rank is at another step, is within a step, cannot write, or died. Nothing is left under the
            final name.
    """
    recovery, link = state._recovery, worker.current()
    job_id = link.config.job_id if link is not None else ""
    directory, present = Path(path).absolute(), recovery.shares.present
    written = dump(recovery, directory, step=recovery.step, job_id=job_id, reason="taskd.save", job=present)
    recovery.saved = SavedCheckpoint(recovery.step, str(written))
    recovery.on_saved()
    return written


def go_back(recovery: StateRecovery, step: int) -> tuple[bytes, str]:
    """Load the job's own checkpoint of this step; return this rank's position, and a note on what is not exact.

    Collective over the default group.

    Raises:
        RestoreError: it cannot be read, on this rank or another one. The state is untouched then.
    """
    ranks = Ranks()
    known = [saved for saved in ranks.gather(recovery.saved) if saved is not None and saved.step == step]
    found = _read(recovery, known[0], ranks) if known else f"no rank knows where the checkpoint of step {step} is"
    said = [why for why in ranks.gather(found if isinstance(found, str) else "") if why]
    if said or isinstance(found, str):
        raise RestoreError(f"not all ranks can go back to the checkpoint of step {step}: {said[0]}")
    draft, position = found
    with recovery.restoring(step):
        draft.put()
    recovery.saved = known[0]
    inexact = recovery.parts.loose.changed() or recovery.parts.plain.changed() or recovery.parts.taken.any
    return position, "what is in no state_dict() is not that of the checkpoint" if inexact else ""


def _read(recovery: StateRecovery, saved: SavedCheckpoint, ranks: Ranks) -> tuple[Draft, bytes] | str:
    """Return the read state, not put into the parts yet, and this rank's position; or why they cannot be read."""
    chosen = files.inspect(Path(saved.path))
    if not isinstance(chosen, files.Checkpoint) or chosen.manifest.step != saved.step:
        return f"{saved.path}: {chosen if isinstance(chosen, str) else f'has step {chosen.manifest.step}'}"
    try:
        loaded = read(recovery, chosen, ranks)
    except CheckpointError as error:
        return str(error)
    return f"{saved.path}: {loaded}" if isinstance(loaded, str) else (loaded.draft, loaded.encoded)
