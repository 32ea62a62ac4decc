"""Checkpoints of the last committed step: written by the survivors of a job that cannot go on, loaded by the next one.

Rules:

1. `dump` is collective: all ranks of a healthy world call it, all at the same committed step. It ends in the same way
   on all of them, unless one dies meanwhile.
2. Random numbers and data positions are each rank's own. They are loaded only if as many ranks load as wrote.
3. `load_latest` reads without a peer. So a single process can call it, and so can a newcomer whose set-up runs alone.
   Ranks of one world agree on the checkpoint, and on whether all have read it, before anything is loaded.
4. Checkpoints in the directory may be damaged or somebody else's. They are passed over then, with the reason. Nothing
   is unpickled freely: our own files hold no pickle, and torch's index is read without unpickling (`pickle_text`).
"""

import errno
import logging
import os
import pickle
import platform
import secrets
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import torch

import taskd
from taskd.adaptors.groups.members import Members
from taskd.adaptors.training.checkpoints import files
from taskd.adaptors.training.checkpoints.content import Draft, Rows
from taskd.adaptors.training.checkpoints.ranks import OF_PARTS, RankFailures, Ranks
from taskd.adaptors.training.checkpoints.sets import OwnSet, divide, merged, own_outline
from taskd.adaptors.training.inflight import pipelining
from taskd.adaptors.training.positions import payload
from taskd.adaptors.training.positions.rng import RngCapture
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.shards import name_of
from taskd.adaptors.training.state import TrainState
from taskd.config.worker import WorkerConfig
from taskd.errors import CheckpointError, RestoreError
from taskd.runtime.folders.ownfolder import OwnFolder
from taskd.wire import text
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition, WorldPlan

_log = logging.getLogger(__name__)


def dump_as_ordered(recovery: StateRecovery, plan: WorldPlan, config: WorkerConfig) -> Path:
    """Write the checkpoint that the plan orders; return its path.

    Raises:
        CheckpointError: it could not be written, or no directory is known.
    """
    directory = Path(os.fsdecode(plan.dump_to)) if plan.dump_to else config.checkpoint_dir
    if directory is None:
        raise CheckpointError(
            "no directory for checkpoints is known to the manager or to this rank; set TASKD_CHECKPOINT_DIR"
        )
    job = Members.of(plan).slots, plan.replicas
    return dump(recovery, directory, step=recovery.step, job_id=config.job_id, reason=plan.dump, job=job)


def dump(
    recovery: StateRecovery,
    directory: Path,
    *,
    step: int,
    job_id: str,
    reason: str,
    job: tuple[Sequence[JobRank], int] | None = None,
) -> Path:
    """Write the state of step `step` to `directory` as `step-N`, and return that path.

    Collective over the default group, or for this process alone if there is none. If this job has written that step
    before, nothing is done. If something else has the name, it is `step-N.1` and so on.

    Args:
        recovery: recovery of a state that is clean, and at `step`, on every rank.
        directory: directory of the checkpoints, the same for all ranks, on a disk that all nodes share.
        step: the last committed step.
        job_id: name of the job, for the manifest.
        reason: why it is written, for the manifest.
        job: the writers' ranks in the job, in order, and the size of the job; by default the writers are all its ranks.

    Raises:
        CheckpointError: a rank is at another step, cannot write, or died. Nothing is left under the final name.
    """
    ranks = Ranks()
    try:
        _agree_on_state(recovery, step, ranks)
        slots, job_size = job or (tuple(map(JobRank, range(ranks.size))), ranks.size)
        own = divide(recovery, ranks, slots)
        identity = ranks.gather(secrets.token_hex(7))[0]
        manifest = files.Manifest(
            format=files.FORMAT,
            step=step,
            world_size=ranks.size,
            job_id=text.name(job_id),
            reason=text.line(reason),
            identity=identity,
            written_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            versions={"taskd": taskd.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
            parts={text.name(name): text.name(type(part).__name__) for name, part in recovery.parts.all.items()},
            files={},
            sets=own.sets,
            job_size=job_size,
        )
        return _Writer(ranks, directory, manifest, own).run(recovery)
    except RankFailures as failures:
        raise CheckpointError(
            f"step {step} was not written to {directory}: {failures}; expected a directory that all nodes share and "
            "every rank may write to, with room enough: mend that, or name another one in TASKD_CHECKPOINT_DIR"
        ) from failures
    except RuntimeError as error:
        raise CheckpointError(
            f"step {step} was not written to {directory}: a rank has died meanwhile ({error}); "
            "all ranks of the world must live to write it"
        ) from error


def load_latest(state: TrainState, path: "str | os.PathLike[str]") -> int | None:
    """Load the newest complete checkpoint in the directory `path`, and return its step; None if there is none.

    All ranks call it before training, once the model is wrapped and on its device. The number of ranks may differ from
    the writers', and so may the wrappers. With another number, random numbers and data positions are left out, with a
    warning. Incomplete and broken checkpoints are passed over, with a warning.

    Raises:
        CheckpointError: the directory cannot be read, ranks find different checkpoints there, or the newest does not
            fit the parts of `state`. In the last case `state` is TORN if it has been changed.
    """
    directory, ranks, recovery = Path(path), Ranks(), state._recovery
    try:
        paths = files.newest_first(directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be read: {error}; expected a directory of checkpoints, or nothing yet"
        ) from error
    while True:
        chosen = _next_complete(paths, ranks)
        _agree_on_checkpoint(chosen, directory, ranks)
        if chosen is None:
            return None
        loaded = read(recovery, chosen, ranks)
        failed_on = ranks.first(isinstance(loaded, str))
        if isinstance(loaded, str):
            if failed_on in (ranks.rank, None):
                _log.warning("checkpoint %s is passed over: it cannot be read: %s", chosen.path, loaded)
        elif failed_on is None:
            _put(recovery, chosen, loaded, ranks)
            return chosen.manifest.step


def _agree_on_state(recovery: StateRecovery, step: int, ranks: Ranks) -> None:
    everyone = ranks.gather((recovery.step, recovery.condition(), sorted(recovery.parts.all)))
    for rank, (at, condition, parts) in enumerate(everyone):
        if (at, condition) != (step, Condition.CLEAN):
            raise CheckpointError(
                f"rank {rank} is {condition.value} at step {at}, expected clean at step {step}; "
                "only a world that has been restored can be saved"
            )
        if parts != everyone[0][2]:
            raise CheckpointError(
                f"rank {rank} has the parts {', '.join(parts)}, expected {', '.join(everyone[0][2])} as on rank 0; "
                "pass the same parts to TrainState on all ranks"
            )


class _Writer:
    """Writer of one checkpoint, on one rank."""

    def __init__(self, ranks: Ranks, directory: Path, manifest: files.Manifest, own: OwnSet) -> None:
        self._ranks = ranks
        self._directory = directory
        self._manifest = manifest
        self._own = own
        self._size_mb = own.size_bytes / 1e6
        self._folder: OwnFolder | None = None

    def run(self, recovery: StateRecovery) -> Path:
        """Write all files and rename them into place. Raises `RankFailures`, or RuntimeError if a rank has died."""
        begun = time.monotonic()
        place = self._ranks.gather(self._ranks.do(self._reserve))[0]
        assert place is not None
        if place.partial is None:
            return place.final
        try:
            try:
                final = self._fill(place.partial, recovery)
            finally:
                files.drop(place.partial, self._ranks.rank)  # finds nothing if all went well
                if self._folder is not None:
                    self._folder.close()
        except RuntimeError:
            known = files.inspect(place.final)  # complete if the rank died after the renaming
            if not isinstance(known, files.Checkpoint) or known.manifest.identity != self._manifest.identity:
                raise
            final = place.final
        if self._ranks.rank == 0:
            duration_ms = (time.monotonic() - begun) * 1e3
            _log.info("wrote %s: %.1f MB in %.0f ms", final, self._size_mb, duration_ms)
        return final

    def _reserve(self) -> files.CheckpointPath | None:
        if self._ranks.rank != 0:
            return None
        place = files.reserve(self._directory, self._manifest.step, self._manifest.job_id, self._manifest.identity)
        if place.partial is not None and shutil.disk_usage(self._directory).free < self._own.size_bytes:
            files.drop(place.partial, WorldRank(0))
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({self._free()})")
        return place

    def _fill(self, partial: Path, recovery: StateRecovery) -> Path:
        ranks = self._ranks
        folder = ranks.do(lambda: self._open(partial))
        ranks.do(lambda: self._write_own(folder, recovery))
        self._write_tensors(folder)
        written: dict[str, int] = {}
        for sizes in ranks.gather(ranks.do(lambda: self._own_sizes(folder))):
            written |= sizes
        manifest = msgspec.structs.replace(self._manifest, files=written)
        final = ranks.gather(ranks.do(lambda: files.complete(folder, manifest) if ranks.rank == 0 else None))[0]
        assert final is not None
        return final

    def _open(self, partial: Path) -> OwnFolder:
        self._folder = OwnFolder(partial, make=False)
        return self._folder

    def _write_own(self, folder: OwnFolder, recovery: StateRecovery) -> None:
        data = msgspec.msgpack.encode(recovery.parts.pack_positions())
        files.write(folder, files.position_file(self._ranks.rank), payload.pack(RngCapture().capture(), data))
        if self._own.outline is not None:
            files.write(folder, self._own.outline, self._own.content.outline)

    def _write_tensors(self, folder: OwnFolder) -> None:
        """Write tensors like torch's `checkpoint.save`, which needs numpy. Raises `RankFailures` on all ranks."""
        from torch.distributed import checkpoint

        from taskd.adaptors.training.checkpoints.reader import writer

        ranks, planner, storage = self._ranks, checkpoint.DefaultSavePlanner(), writer(folder)
        is_first = ranks.rank == 0

        def plan() -> checkpoint.SavePlan:
            planner.set_up_planner(self._own.content.entries, storage.storage_meta(), is_coordinator=is_first)
            storage.set_up_storage_writer(is_first)
            return storage.prepare_local_plan(planner.create_local_plan())

        try:
            plans = ranks.collect(ranks.do(plan))
            together, metadata = ranks.do(lambda: planner.create_global_plan(plans) if is_first else ([], None))
            mine = ranks.share(ranks.do(lambda: storage.prepare_global_plan(together)))
            written = ranks.do(lambda: storage.write_data(planner.finish_plan(mine), planner).wait())
            results = ranks.collect(written)
            ranks.do(lambda: storage.finish(metadata, results) if metadata is not None else None)
        except RankFailures as error:
            free = self._free()
            raise RankFailures({rank: f"{why} ({free})" for rank, why in error.by_rank.items()}) from error

    def _own_sizes(self, folder: OwnFolder) -> dict[str, int]:
        """Return the sizes of this rank's files. On a network file system, other ranks may get wrong sizes at first."""
        rank = self._ranks.rank
        mine = [files.position_file(rank), *(name for name in folder.names() if name.startswith(f"__{rank}_"))]
        mine += [] if self._own.outline is None else [self._own.outline]
        return files.sizes(folder, [*mine, files.INDEX] if rank == 0 else mine)

    def _free(self) -> str:
        free_mb = shutil.disk_usage(self._directory).free / 1e6
        return f"{free_mb:.2f} MB are free, {self._size_mb:.2f} MB are to be written"


@dataclass(frozen=True)
class Loaded:
    """Content that was read from a checkpoint.

    `position`: random numbers and data position, None for another world size. `encoded`: their file's bytes, or empty.
    """

    draft: Draft
    position: tuple[list[bytes], dict[str, bytes]] | None
    encoded: bytes = b""


def _next_complete(paths: list[Path], ranks: Ranks) -> files.Checkpoint | None:
    """Remove paths from `paths` up to the first complete checkpoint, and return that one; None if there is none."""
    while paths:
        path = paths.pop(0)
        known = files.inspect(path)
        if isinstance(known, files.Checkpoint):
            return known
        ranks.warn("checkpoint %s is passed over: %s", path, known)
    return None


def _agree_on_checkpoint(chosen: files.Checkpoint | None, directory: Path, ranks: Ranks) -> None:
    numbers = (-1, 0) if chosen is None else (chosen.manifest.step, int(chosen.manifest.identity, 16))
    if not ranks.agree(*numbers):
        seen = "none" if chosen is None else f"{chosen.path.name}, written at {text.name(chosen.manifest.written_at)}"
        raise CheckpointError(
            f"the newest complete checkpoint in {directory} is not the same for all ranks: rank {ranks.rank} sees "
            f"{seen}; expected one directory that all nodes share"
        )


def read(recovery: StateRecovery, chosen: files.Checkpoint, ranks: Ranks) -> Loaded | str:
    """Read a whole checkpoint without changing the state; if that is impossible, return why, in one line.

    Raises:
        CheckpointError: it is intact, but does not fit the parts of the state.
    """
    from torch.distributed import checkpoint

    from taskd.adaptors.training.checkpoints.reader import reader

    try:
        loaded = _prepare(recovery, chosen, ranks)
        targets = loaded.draft.targets
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            checkpoint.load(
                targets,
                storage_reader=reader(chosen.path, targets, chosen.manifest.files),
                planner=checkpoint.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,
            )
    except checkpoint.CheckpointException as error:
        why: BaseException = next(iter(error.failures.values()))[0]
    except CheckpointError as error:
        raise CheckpointError(text.line(str(error))) from None  # it quotes a file that anybody may have written
    except Exception as error:  # noqa: BLE001 - msgspec, torch and a part read bytes that anybody may have written
        why = error
    else:
        return loaded
    return text.line(_told(why))


def _told(why: BaseException) -> str:
    if isinstance(why, pickle.UnpicklingError):
        return "torch finds no tensors in its data"  # torch's own text advises to unpickle the data freely
    return str(why) if isinstance(why, RestoreError) else repr(why)


def _prepare(recovery: StateRecovery, chosen: files.Checkpoint, ranks: Ranks) -> Loaded:
    """Read everything but the tensors."""
    rows = _outline(recovery, chosen, ranks)
    draft = Draft(recovery.parts, rows, of_stage=bool(pipelining.stages()))
    if chosen.manifest.world_size != ranks.size:
        return Loaded(draft, None)
    position = files.read(chosen.path / files.position_file(ranks.rank), files.MOST_OTHER_BYTES)
    return Loaded(draft, payload.unpack(position), position)


def _outline(recovery: StateRecovery, chosen: files.Checkpoint, ranks: Ranks) -> dict[str, Rows]:
    """Return the outline of this rank's replica set, or all outlines merged if it belongs to none."""
    sets = chosen.manifest.sets
    rank = JobRank(ranks.rank) if chosen.manifest.job_size == ranks.size else None
    own = own_outline(sets, name_of(recovery.parts), rank)
    names = [own] if own is not None else list(dict.fromkeys([files.OUTLINE, *(one.outline for one in sets)]))
    rows, differing = merged([files.read(chosen.path / name, files.MOST_OTHER_BYTES) for name in names], sets)
    if differing:
        ranks.warn(
            "checkpoint %s has %s as each replica set had it; this rank is of none of them, and takes the first's",
            chosen.path,
            text.line(", ".join(differing)),
        )
    return rows


def _put(recovery: StateRecovery, chosen: files.Checkpoint, loaded: Loaded, ranks: Ranks) -> None:
    """Put the content that was read into the state."""
    manifest = chosen.manifest
    try:
        with recovery.restoring(manifest.step):
            loaded.draft.put()
        missing = []
        if loaded.position is not None:
            missing = recovery.parts.unpack_positions(loaded.position[1], of_job=False)
            RngCapture().restore(loaded.position[0])
    except OF_PARTS as error:
        parts = text.line(", ".join(f"{name}: {kind}" for name, kind in manifest.parts.items()))
        raise CheckpointError(
            f"{chosen.path} cannot be loaded: {text.line(repr(error))}; "
            f"expected parts as in the job that wrote it ({parts})"
        ) from error
    if loaded.position is None:
        ranks.warn(
            "checkpoint %s was written by %d ranks and is loaded by %d: each goes on with its own %s",
            chosen.path,
            manifest.world_size,
            ranks.size,
            ", ".join(("random numbers", *recovery.parts.positions)),
        )
    for name in [*loaded.draft.left_out, *missing]:
        ranks.warn("checkpoint %s: part %r is only there or only here, and is not loaded", chosen.path, name)
