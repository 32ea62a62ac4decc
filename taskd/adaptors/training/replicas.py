"""Which replica set a rank belongs to: by what torch says of its tensors, and proven by what these hold.

Rules:

1. The *name* is made of the coordinates of its sharded tensors and of its pipeline stages: "" for a plain model.
2. Tensors that are not sharded prove nothing: they may be another stage's. So the parameters are digested, as the
   training function is entered and at the first commit. Ranks of one name whose digests of the same moment differ are
   no replicas of one another (the manager compares).
3. A new process has its donor's digests, since it has its state.
"""

import logging

from taskd.adaptors.training.parts import Parts
from taskd.adaptors.training.shards import digest_of, name_of
from taskd.runtime.worker.worker import StateHeld
from taskd.wire.kinds import NOBODY

_log = logging.getLogger(__name__)


class Replicas:
    """What one rank says of its part of the job's state.

    Attributes:
        name: of what it has a part; "" for all of it.
        weights: digests of its parameters at the beginning and at the first commit, as far as there are any.
        distrusts: the rank whose state has not arrived as it was sent, until another state has.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.name = ""
        self.weights: tuple[str, ...] = ()
        self.distrusts = NOBODY

    def begin(self, *, empty: bool = False) -> None:
        """The training function is entered; `empty` by a new process, whose weights count for nothing."""
        self.name, self.weights = name_of(self._parts), ()
        if not empty:
            self._digest()

    def said(self) -> StateHeld:
        """For a report."""
        return StateHeld(self.name, self.weights, self.distrusts)

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
