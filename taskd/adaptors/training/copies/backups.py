"""`Backups`: the copies of one rank's training state, from the training function's point of view.

Rules:

1. A rank copies its state if no other rank holds the same, or if the script requests it
   (`TrainState(backup_every=N)`). Of the ranks with the same state, one on each node copies it. The others copy only
   their data position and random numbers (`sharing.py`).
2. Copies are made only while the training function runs. At a fault copying ends before this rank reports.
3. Without room for copies the job continues to train, and logs a warning. At a fault all ranks then start anew; if
   other ranks hold the state, only when all of these are lost. If all start anew for another reason, no copies are
   made.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.groups.store import prefix
from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.training.copies.context import CopyHooks, CopyWorld
from taskd.adaptors.training.copies.copier import Copier
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.copies.ring import Member, Neighbours, earlier_on_node, neighbours
from taskd.adaptors.training.copies.sharing import state_key
from taskd.adaptors.training.copies.snapshot import Snapshot
from taskd.adaptors.training.copies.tally import Tally
from taskd.adaptors.training.limits.compiled import compiled_anew
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.refusals import Refusals, alone, has_statistics, tell_inexact
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.layout import record_layouts
from taskd.adaptors.training.sharding.shards import name_of
from taskd.runtime.system.hidden import forget
from taskd.runtime.worker.pulse import NEVER
from taskd.runtime.worker.worker import WorkerLink
from taskd.wire.state import StateHeld, Unshared
from taskd.wire.text import line

_log = logging.getLogger(__name__)
_ALONE, _IN_PAIRS = 2, 4
"""Copies for each rank of a node: two of its own state, and two of another's if there are several nodes."""

_WITH_OPTIMIZER = 3
"""Factor by which the first step of an optimizer may enlarge the state."""
_LEFT = "Its device does not answer; where there is none, please report this as a bug in taskd."


class Backups:
    """The copies of one rank, over all worlds.

    Args:
        recovery: recovery of the state.
        link: link to the agent. It receives reports of the copies, and keeps their memory; without memory there are no
            copies.
        refusals: receives the reason if there can be no copies.
        section: number of the resilient function that is entered.
        forbid: makes collectives of this thread raise an error with this text, since not all ranks copy the state.
    """

    def __init__(
        self,
        recovery: StateRecovery,
        link: WorkerLink,
        refusals: Refusals,
        section: int = 0,
        forbid: Callable[[str], AbstractContextManager[None]] = lambda _why: nullcontext(),
    ) -> None:
        rank, copies = link.config.rank, link.config.copies
        asked = recovery.backup_every
        self._whole = True
        """True if the last copier copied the state and not only the position."""
        self._shared = asked is None and not any(alone(recovery.parts))
        if self._shared and name_of(recovery.parts):
            asked = 0  # each rank of a node may hold another part
        self._recovery, self._rank = recovery, rank
        self._every = asked or 0
        self._refusals, self._forbid = refusals, forbid
        self._link = link
        self._elsewhere = link.joins and not self._shared
        """True if the next node keeps the copies too."""
        self._begun = link.joins
        """True if all ranks may have copies of a step. In a process that joins: its predecessor may have had them."""
        ranks = 1 if self._shared else link.config.per_node
        self.folder: CopyFolder | None = None
        if asked != 0 and copies:
            self.folder = CopyFolder(copies, rank, ranks, asked=bool(asked), section=section)
            if link.joins and self.folder.has_own():
                recovery.replicas.own = Unshared.ALONE
        self._copier: Copier | None = None
        self._tells = False
        recovery.replicas.statistics = has_statistics(recovery.parts)
        self._hooks: list[RemovableHandle] = []
        self.behind = -1
        """Step whose work after the commit was interrupted on this rank; -1: none."""
        self.tally = Tally()
        """Tally of the present world, or of the last one."""
        if self.folder is not None:
            settle = self._settler()
            self._hooks = [optimizer.register_step_pre_hook(settle) for optimizer in recovery.parts.optimizers]

    @property
    def on(self) -> bool:
        """True if copies are made."""
        return self.folder is not None

    @property
    def next(self) -> int:
        """The step whose commit must call `due`."""
        return NEVER if self._copier is None else self._copier.next

    @property
    def keeps_own(self) -> bool:
        """True if each rank can copy its own state."""
        return self.folder is not None and not self._refusals.of_newcomers

    def forget(self) -> None:
        """Erase the copies, because another training function is entered that has no use for them."""
        if self.folder is not None:
            self.folder.forget_after(-1)

    def held(self, paused: bool) -> StateHeld:
        """Return a report of this rank's part of the job's state. It lists copies only if paused: else they change."""
        saved = self._recovery.saved
        new = self._link.config.joins and self._recovery.commits <= 1
        inexact = "; ".join(filter(None, (self._recovery.inexact, compiled_anew() if new else "")))
        saved_step = -1 if saved is None else saved.step
        behind = self.behind if paused else -1
        said = replace(self._recovery.replicas.said(), saved=saved_step, inexact=line(inexact), behind=behind)
        if self.folder is None:
            return said
        copier = self._copier
        whole = self._whole if copier is None else copier.whole
        if said.own is Unshared.NOTHING and self._begun and self._recovery.replicas.statistics:
            said = replace(said, own=Unshared.SERVES)
        backs_up = self._begun and whole
        copies = self.folder.whole() if paused else ()
        return replace(said, backs_up=backs_up, elsewhere=backs_up and self._elsewhere, copies=copies)

    def start(self, world: GroupWorld, kept: int, *, first: bool) -> None:
        """Start making copies, because training begins in this world.

        `kept`: newest step of which all ranks have copies; -1 without one. `first`: the training function is entered
        for the first time, and its first state is copied at once.
        """
        if self.folder is None or self._refusals.of_newcomers:
            return
        members = world.members.slots or (self._rank,)
        copies = CopyWorld(
            prefix(world.store_key, world.generation),
            world.section,
            lambda: self._link.peers_key,
            state_key(self._recovery.replicas) if self._shared else "",
        )
        per_node = self._link.config.per_node
        near = Neighbours(None, None) if self._shared else neighbours(self._rank, members, per_node)
        earlier = earlier_on_node(self._rank, members, per_node)
        member = Member(self._rank, members[0] == self._rank, len(members), near, earlier)
        self._recovery.replicas.statistics = has_statistics(self._recovery.parts)
        self.folder.forget_after(self._recovery.step)
        self._begun, self._tells, self._elsewhere = kept >= 0, member.first, near.buddy is not None
        hooks = CopyHooks(lambda: self._recovery.step, self._give_up, self._begin, self._recovery.copy_at)
        self._copier = Copier(member, self.folder, self._every, kept, copies, hooks)
        self.tally = self._copier.tally
        self._recovery.backups = self
        if first:
            self._copier.start_here(self._take)
        elif not self._shared:
            self._copier.start()

    def committed(self) -> None:
        """Start copying after the first commit of this world."""
        if self._copier is not None:
            self._copier.start()

    def stop(self) -> None:
        """Stop making copies, because the training function was left."""
        copier, self._copier, self._recovery.backups = self._copier, None, None
        if copier is None:
            return
        self._whole, self._elsewhere = copier.whole, copier.near.buddy is not None
        if not copier.stop():
            self._give_up("the thread that copies does not end", _LEFT)
        elif self.folder is None:
            copier.folder.remove()

    def close(self) -> None:
        """Release everything, because the training function was left for good. The agent removes the copies."""
        held = self.held(False)
        self._link.holding = lambda _paused: held  # keeps no reference to the trained state
        for hook in self._hooks:
            hook.remove()
        if self.folder is not None:
            self.folder.close()

    def due(self, step: int) -> None:
        """Copy the state of `step`, the `next` one, because it is committed."""
        copier = self._copier
        if copier is not None:
            copier.due(step, self._take)

    def _take(self, snapshot: Snapshot) -> bool:
        copier, folder = self._copier, self.folder
        parts = self._recovery.parts
        ready = copier is not None and folder is not None and parts.knows_place and record_layouts(self._recovery)
        if copier is not None and folder is not None and ready:
            self._copy_own(copier, folder)
            with self._forbid("a state_dict() of the TrainState's parts has called a collective"):
                snapshot.take(self._recovery, folder, self._rank, copier.kept, self._fits, place=not copier.whole)
        return ready

    def _copy_own(self, copier: Copier, folder: CopyFolder) -> None:
        """Have this rank copy its whole state if it differs from that of its replicas."""
        copier.own = self._recovery.replicas.own is Unshared.ALONE
        if copier.own or self._recovery.replicas.statistics:
            copier.whole, copier.rests = True, False
            folder.expect(self._link.config.per_node)

    def _fits(self, size_bytes: int) -> str:
        assert self.folder is not None
        copier = self._copier
        each = _ALONE if copier is None or copier.near.buddy is None else _IN_PAIRS
        stepped = any(optimizer.state for optimizer in self._recovery.parts.optimizers)
        return self.folder.shortage(size_bytes * (1 if stepped else _WITH_OPTIMIZER), each)

    def _begin(self) -> None:
        self._begun = True
        self._link.tell_again()

    def _give_up(self, why: str, remedy: str = "Give the node, or its container, that much memory.") -> None:
        self.folder = None
        if not self._shared or self._recovery.replicas.own is Unshared.ALONE:
            text = f"no copies are made of a state that no other rank has: {why}"
            self._refusals.add(Matter(text, remedy))
        elif self._tells:
            _log.warning("no copies of the state are made: %s; if all ranks are lost at once, all start anew", why)
            forget()
        if self._recovery.replicas.statistics:
            tell_inexact(self._recovery.parts)
            forget()

    def _settler(self) -> Callable[..., None]:
        """Return a plain function, so an optimizer that carries it can still be copied."""

        def settle(*_: object) -> None:
            copier = self._copier
            if copier is not None and copier.snapshot.busy:
                copier.settle()

        return settle
