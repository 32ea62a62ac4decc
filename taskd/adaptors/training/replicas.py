"""Which replica set a rank belongs to: by what torch says of its tensors, and proven by what these hold.

Rules:

1. The *name* is made of the coordinates of its sharded tensors and of its pipeline stages: "" for a plain model.
2. Tensors that are not sharded prove nothing: they may be another stage's. So the parameters are digested, as the
   training function is entered and at the first commit. Ranks of one name whose digests of the same moment differ are
   no replicas of one another (the manager compares).
3. A new process has its donor's digests, since it has its state.
"""

import logging

from taskd.adaptors.groups.rows import MeshRows
from taskd.adaptors.training.parts import Parts
from taskd.adaptors.training.shards import digest_of, name_of, rows_of
from taskd.runtime.worker.worker import StateHeld
from taskd.wire.kinds import NOBODY, JobRank
from taskd.wire.state import MeshRow

_log = logging.getLogger(__name__)


class Replicas:
    """What one rank says of its part of the job's state.

    Attributes:
        name: of what it has a part; "" for all of it.
        weights: digests of its parameters at the beginning and at the first commit, as far as there are any.
        rows: of the whole job; None without a mesh, or where they are not known.
        distrusts: the rank whose state has not arrived as it was sent, until another state has.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.name = ""
        self.weights: tuple[str, ...] = ()
        self.distrusts = NOBODY
        self.rows: MeshRows | None = None
        self._row: MeshRow | None = None

    def begin(self, *, empty: bool = False, slot: JobRank = NOBODY, size: int = 0) -> None:
        """The training function is entered; `empty` by a new process, whose weights count for nothing.

        `slot` is the rank in the job, without which nothing is said of rows. The job has `size` ranks; 0: as many as
        have begun.
        """
        self.name, self.weights = name_of(self._parts), ()
        found = None if slot == NOBODY else rows_of(self._parts, size)
        self.rows = None if isinstance(found, str) else found
        self._row = MeshRow(refusal=found) if isinstance(found, str) else None if found is None else found.row(slot)
        if not empty:
            self._digest()

    def said(self) -> StateHeld:
        """For a report."""
        return StateHeld(self.name, self.weights, self.distrusts, row=self._row)

    def committed(self) -> None:
        """A step is committed."""
        if len(self.weights) == 1:
            self._digest()

    def take(self, weights: tuple[str, ...]) -> None:
        """The state is a donor's now."""
        self.weights, self.distrusts = weights, NOBODY

    def _digest(self) -> None:
        try:
            self.weights = (*self.weights, digest_of(self._parts))
        except (RuntimeError, TypeError, NotImplementedError) as error:  # a kind of tensor whose memory cannot be read
            _log.debug("the parameters are not digested: %s", error)
