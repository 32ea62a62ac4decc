"""The replica set of a rank: named by torch's description of its tensors, and proven by their content.

Rules:

1. The *name* consists of the coordinates of the rank's sharded tensors and of its pipeline stages: "" for a plain
   model. A script may state another name. Ranks that state the same name must have equal coordinates; otherwise the
   statement is an error.
2. Tensors that are not sharded prove nothing, because they may belong to another stage. So the parameters are digested
   as the training function is entered, and at the first commit. Ranks of one name whose digests of the same moment
   differ are not replicas of one another, whatever was stated. The manager compares them.
3. A new process has its donor's digests, since it has its donor's state.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from msgspec.structs import replace

from taskd.adaptors.groups.rows import MeshRows
from taskd.adaptors.groups.tables import default_store
from taskd.adaptors.training.keeping import Copying
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.shards import digest_of, name_of, rows_of
from taskd.adaptors.training.trust.verifying import StateVerifier
from taskd.errors import StatementError
from taskd.runtime.worker.pulse import NEVER
from taskd.wire.kinds import NOBODY, JobRank
from taskd.wire.state import MeshRow, StateHeld, Unshared

_log = logging.getLogger(__name__)


class Replicas:
    """One rank's description of its part of the job's state.

    Args:
        parts: parts of the state.
        stated: name of the set, if the script states one.
        verify_every: steps from one digest of the state to the next, which are compared; 0: no digests.

    Attributes:
        name: name of its set.
        part: name of its part of the state, from torch's description; "" for all of it. States are sent only between
            ranks with the same part.
        weights: digests of its parameters at the beginning and at the first commit, as far as there are any.
        rows: rows of the whole job; None without a mesh, or if they are not known.
        own: whether this rank's state differs from that of its replicas, as far as known.
        statistics: whether this rank has BatchNorm statistics that no other rank has.
        distrusts: rank whose state has not arrived as it was sent, until another state arrives.
    """

    def __init__(self, parts: Parts, stated: str = "", verify_every: int = 0) -> None:
        self._parts = parts
        self._stated = stated
        self.verifier = StateVerifier(parts, verify_every) if verify_every else None
        self.name = self.part = ""
        self.weights: tuple[str, ...] = ()
        self.distrusts = NOBODY
        self.own, self.statistics = Unshared.NOTHING, False
        self.rows: MeshRows | None = None
        self._row: MeshRow | None = None

    def begin(self, *, empty: bool = False, world: str = "", slot: JobRank = NOBODY, size: int = 0) -> None:
        """Determine set, part and rows as the training function is entered. `empty`: the weights count for nothing.

        `world` distinguishes the present training function in the present world from all others. `slot` is the rank in
        the job; without it no row is reported. The job has `size` ranks; 0: as many as have started.

        Raises:
            StatementError: another rank has stated the same replica set, and has another part.
        """
        named = name_of(self._parts)
        if self._stated and not empty:
            _expect_same(self._stated, named, world)
        self.part, self.weights = named, ()
        self.name = self._stated or named
        found = None if slot == NOBODY else rows_of(self._parts, size)
        self.rows = None if isinstance(found, str) else found
        self._row = MeshRow(refusal=found) if isinstance(found, str) else None if found is None else found.row(slot)
        if not empty:
            self._digest()

    def said(self) -> StateHeld:
        """Return the description, for a report."""
        said = StateHeld(
            replicas=self.name, weights=self.weights, distrusts=self.distrusts, row=self._row, own=self.own
        )
        return said if self.verifier is None else replace(said, digests=self.verifier.digests)

    def committed(self) -> None:
        """Digest the parameters at the first commit."""
        if len(self.weights) == 1:
            self._digest()

    def take(self, weights: tuple[str, ...]) -> None:
        """Take over the digests of a donor, whose state this rank has now."""
        self.weights, self.distrusts = weights, NOBODY

    def keep_own(self, copying: Copying | None) -> bool:
        """Mark this rank's state as different from that of its replicas; return False if it cannot be copied."""
        kept = copying is not None and copying.keeps_own
        if kept:
            self.own = Unshared.ALONE
        return kept

    @property
    def due_at(self) -> int:
        """The step whose commit must call `due`."""
        return NEVER if self.verifier is None else self.verifier.next

    def due(self, step: int) -> None:
        """Let the verifier digest the state of `step`, which is committed."""
        if self.verifier is not None:
            self.verifier.due(step)

    def verifying(self, step: int, tell: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context for the training function, in which the state is digested from `step` on, if requested."""
        return nullcontext() if self.verifier is None else self.verifier.running(step, tell)

    def _digest(self) -> None:
        try:
            self.weights = (*self.weights, digest_of(self._parts))
        except (RuntimeError, TypeError, NotImplementedError) as error:  # a kind of tensor whose memory cannot be read
            _log.debug("the parameters are not digested: %s", error)


def _expect_same(stated: str, found: str, world: str) -> None:
    """Compare this rank's part with that of the first rank that stated this set, by the store, without a wait."""
    if not dist.is_initialized():
        return
    store = default_store()
    said = found or "all of the state"
    try:
        first = store.compare_set(f"taskd-replica-sets/{world}/{stated}", "", said).decode()
    except (RuntimeError, NotImplementedError) as error:  # the store does not support it
        _log.debug("the statement of a replica set is not compared: %s", error)
        return
    if first != said:
        raise StatementError(
            f"TrainState(replica_set={stated!r}) of this rank has the part {said!r} by its sharded tensors, and "
            f"another rank that states it has {first!r}; expected equal parts, since ranks of one set hold the same. "
            "State another name for each part, or none: taskd finds the sets of sharded tensors by itself"
        )
