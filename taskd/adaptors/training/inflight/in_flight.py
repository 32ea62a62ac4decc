"""Values of a training state's present step that wrappers, optimizers and schedules hold."""

from taskd.adaptors.training.inflight import fsdp2, pipelining
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding import partitions
from taskd.adaptors.training.sharding.own_state import own_state


class InFlight:
    """Holders of the present step's values, found as the training function is entered.

    `any`: whether a commit has anything to record of them.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sharded = fsdp2.sharded_modules(parts.modules)
        self._told = [own for own in map(own_state, parts.replicated.values()) if own is not None]
        self._library = [part for part in parts.replicated.values() if isinstance(part, LibraryPart)]
        self.any = bool(self._sharded or self._told)
        self.flags: fsdp2.Flags = []
        """FSDP2's flags at the last commit."""
        self.begun_at = -1
        """The step at which the training began; -1 if that is not known. The first step is the one after it."""
        self.mark()

    def mark(self) -> None:
        """Record the values of a step that is committed."""
        self.flags = fsdp2.flags(self._sharded)
        for own in self._told:
            own.mark()

    def drop_step(self, step: int) -> None:
        """Drop the present step, and restore the flags of the last commit. Training continues at `step`.

        Raises:
            RestoreError: something of the step may still be under way.
        """
        for library in self._library:
            library.drop_step()
        partitions.drop_step(self._parts.optimizers)
        pipelining.drop_step(lambda: step == self.begun_at)
        fsdp2.drop_step(self._sharded)
        fsdp2.put_flags(self._sharded, self.flags)
        for own in self._told:
            own.drop_step()

    def complete(self) -> None:
        """Make divided values whole again, as all ranks have the state of one step. Collective.

        Raises:
            RuntimeError: a peer has died.
        """
        for own in self._told:
            own.complete()
        for library in self._library:
            library.complete()

    def take(self, flags: fsdp2.Flags, begun_at: int) -> None:
        """Use a donor's flags from now on, and the donor's `begun_at`."""
        self.flags, self.begun_at = flags, begun_at
        fsdp2.put_flags(self._sharded, flags)
