"""Which replica set a rank belongs to: by what torch says of its tensors, and proven by what these hold.

Rules:

1. The *name* is made of the coordinates of its sharded tensors and of its pipeline stages: "" for a plain model. A
   script may state another; ranks that state the same have equal coordinates, or the statement is an error.
2. Tensors that are not sharded prove nothing: they may be another stage's. So the parameters are digested, as the
   training function is entered and at the first commit. Ranks of one name whose digests of the same moment differ are
   no replicas of one another, whatever was stated (the manager compares).
3. A new process has its donor's digests, since it has its state.
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
    """What one rank says of its part of the job's state.

    Args:
        parts: of the state.
        stated: the name of the set, if the script has said it.
        verify_every: steps from one digest of the state to the next, to be compared; 0: none.

    Attributes:
        name: of its set.
        part: of what it has a part, by what torch says; "" for all of it. Only equal ones are given on.
        weights: digests of its parameters at the beginning and at the first commit, as far as there are any.
        rows: of the whole job; None without a mesh, or where they are not known.
        own: whether this rank's state differs from that of its replicas, as far as known.
        statistics: this rank has BatchNorm statistics that no other rank has.
        distrusts: the rank whose state has not arrived as it was sent, until another state has.
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
        """The training function is entered; `empty` by a new process, whose weights count for nothing.

        `world` tells the present training function of the present world from all others. `slot` is the rank in the job,
        without which nothing is said of rows. The job has `size` ranks; 0: as many as have begun.

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
        """For a report."""
        said = StateHeld(
            replicas=self.name, weights=self.weights, distrusts=self.distrusts, row=self._row, own=self.own
        )
        return said if self.verifier is None else replace(said, digests=self.verifier.digests)

    def committed(self) -> None:
        """A step is committed."""
        if len(self.weights) == 1:
            self._digest()

    def take(self, weights: tuple[str, ...]) -> None:
        """The state is a donor's now."""
        self.weights, self.distrusts = weights, NOBODY

    def keep_own(self, copying: Copying | None) -> bool:
        """Mark this rank's state as different from that of its replicas; return False if it cannot be copied."""
        kept = copying is not None and copying.keeps_own
        if kept:
            self.own = Unshared.ALONE
        return kept

    @property
    def due_at(self) -> int:
        """The step whose commit the verifier waits for."""
        return NEVER if self.verifier is None else self.verifier.next

    def due(self, step: int) -> None:
        """That step is committed."""
        if self.verifier is not None:
            self.verifier.due(step)

    def verifying(self, step: int, tell: Callable[[], None]) -> AbstractContextManager[None]:
        """While the training function runs, from `step` on, the state is digested, if the script wants it."""
        return nullcontext() if self.verifier is None else self.verifier.running(step, tell)

    def _digest(self) -> None:
        try:
            self.weights = (*self.weights, digest_of(self._parts))
        except (RuntimeError, TypeError, NotImplementedError) as error:  # a kind of tensor whose memory cannot be read
            _log.debug("the parameters are not digested: %s", error)


def _expect_same(stated: str, found: str, world: str) -> None:
    """Compare with what the first rank has that stated this set: by the store, in which nobody waits for another."""
    if not dist.is_initialized():
        return
    store = default_store()
    said = found or "all of the state"
    try:
        first = store.compare_set(f"taskd-replica-sets/{world}/{stated}", "", said).decode()
    except (RuntimeError, NotImplementedError) as error:  # a store that cannot
        _log.debug("the statement of a replica set is not compared: %s", error)
        return
    if first != said:
        raise StatementError(
            f"TrainState(replica_set={stated!r}) of this rank has the part {said!r} by its sharded tensors, and "
            f"another rank that states it has {first!r}; expected equal parts, since ranks of one set hold the same. "
            "State another name for each part, or none: taskd finds the sets of sharded tensors by itself"
        )
