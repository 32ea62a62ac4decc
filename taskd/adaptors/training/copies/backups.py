"""`Backups`: the copies of one rank's training state, from the training function's point of view.

Rules:

1. They are made where no other rank has the same state, or where the script says so (`TrainState(backup_every=N)`).
2. Nothing is copied but while the training function runs; at a fault copying ends before this rank reports.
3. Where there is no room for them, the job trains on without, and says so at once: at a fault all start anew then. Nor
   are they made where that is so for another reason.
"""

from collections.abc import Callable

from msgspec.structs import replace
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.groups.store import prefix
from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.training.copies.copier import Copier, CopyWorld, Tally
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.copies.ring import Member, neighbours
from taskd.adaptors.training.copies.snapshot import Snapshot
from taskd.adaptors.training.keeping import NEVER
from taskd.adaptors.training.limits.compiled import compiled_anew
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals, alone
from taskd.adaptors.training.recovery import StateRecovery
from taskd.runtime.worker.worker import WorkerLink
from taskd.wire.state import StateHeld
from taskd.wire.text import line

_ALONE, _IN_PAIRS = 2, 4
"""Copies for each rank of a node: two of its own state, and two of another's where there are several nodes."""

_LEFT = "Its device does not answer; where there is none, please report this as a bug in taskd."


class Backups:
    """Those of one rank, over all worlds.

    Args:
        recovery: of the state.
        link: to the agent, which is told that there are copies, and keeps the memory for them; without that there
            are none.
        refusals: told why there can be none.
    """

    def __init__(self, recovery: StateRecovery, link: WorkerLink, refusals: Refusals) -> None:
        rank, copies = link.config.rank, link.config.copies
        asked = recovery.backup_every
        wanted = any(alone(recovery.parts)) if asked is None else asked > 0
        self._recovery, self._rank = recovery, rank
        self._every = asked or 0
        self._refusals = refusals
        self._link = link
        self._begun = link.joins
        """All ranks may have copies of a step: of a process that joins, whom it replaces may know of them."""
        ranks = link.config.per_node
        self.folder = CopyFolder(copies, rank, ranks, asked=bool(asked)) if wanted and copies else None
        self._copier: Copier | None = None
        self._hooks: list[RemovableHandle] = []
        self.tally = Tally()
        """Of the present world, or of the last."""
        if self.folder is not None:
            settle = self._settler()
            self._hooks = [optimizer.register_step_pre_hook(settle) for optimizer in recovery.parts.optimizers]

    @property
    def on(self) -> bool:
        """Whether copies are made."""
        return self.folder is not None

    @property
    def next(self) -> int:
        """The step whose commit is to be told of."""
        return NEVER if self._copier is None else self._copier.next

    def forget(self) -> None:
        """Another training function is entered: what was copied before is of no use to it."""
        if self.folder is not None:
            self.folder.forget_after(-1)

    def held(self, paused: bool) -> StateHeld:
        """What this rank has of the job's state, for a report; its copies if it is paused: else they change."""
        saved = self._recovery.saved
        new = self._link.config.joins and self._recovery.commits <= 1
        inexact = "; ".join(filter(None, (self._recovery.inexact, compiled_anew() if new else "")))
        saved_step = -1 if saved is None else saved.step
        said = replace(self._recovery.replicas.said(), saved=saved_step, inexact=line(inexact))
        if self.folder is None:
            return said
        return replace(said, backs_up=self._begun, copies=self.folder.whole() if paused else ())

    def start(self, world: GroupWorld, kept: int) -> None:
        """Training begins in this world. `kept`: the newest step of which all ranks have copies; -1 without one."""
        if self.folder is None or self._refusals.of_newcomers:
            return
        members = world.members.slots or (self._rank,)
        copies = CopyWorld(
            prefix(world.store_key, world.generation),
            world.section,
            lambda: self._link.peers_key,
        )
        member = Member(
            self._rank,
            members[0] == self._rank,
            len(members),
            neighbours(self._rank, members, self._link.config.per_node),
        )
        self.folder.forget_after(self._recovery.step)
        self._begun = kept >= 0
        self._copier = Copier(
            member, self.folder, self._every, kept, copies, lambda: self._recovery.step, self._give_up, self._begin
        )
        self.tally = self._copier.tally
        self._recovery.backups = self

    def stop(self) -> None:
        """The training function was left."""
        copier, self._copier, self._recovery.backups = self._copier, None, None
        if copier is None:
            return
        if not copier.stop():
            self._give_up("the thread that copies does not end", _LEFT)
        elif self.folder is None:
            copier.remove()

    def close(self) -> None:
        """The training function was left for good. The copies are the agent's to remove."""
        held = self.held(False)
        self._link.holding = lambda _paused: held  # what was trained can go
        for hook in self._hooks:
            hook.remove()
        if self.folder is not None:
            self.folder.close()

    def due(self, step: int) -> None:
        """`next` is committed."""
        copier = self._copier
        if copier is not None:
            copier.due(step, self._take)

    def _take(self, snapshot: Snapshot) -> None:
        copier, folder = self._copier, self.folder
        if copier is not None and folder is not None:
            each = _ALONE if copier.near.buddy is None else _IN_PAIRS

            def fits(size_bytes: int) -> str:
                return folder.shortage(size_bytes, each)

            snapshot.take(self._recovery, folder, self._rank, copier.kept, fits)

    def _begin(self) -> None:
        self._begun = True
        self._link.tell_again()

    def _give_up(self, why: str, remedy: str = "Give the node, or its container, that much memory.") -> None:
        self.folder = None
        text = f"no copies are made of a state that no other rank has: {why}"
        self._refusals.add(Matter(text, remedy))

    def _settler(self) -> Callable[..., None]:
        """A function, so that an optimizer that has it can still be copied."""

        def settle(*_: object) -> None:
            copier = self._copier
            if copier is not None and copier.snapshot.busy:
                copier.settle()

        return settle
