"""The thread that makes copies, in rounds: one for each copied step, with all ranks of the world.

Rules:

1. A round begins when the main thread commits its step, and ends when every rank has reported its result. The first
   rank of the world counts the results. It decides for all whether the copies of this step are whole and which step is
   copied next. So a step's copies are whole on all ranks before any earlier copy is overwritten. Whenever processes
   die, there is a step of which all copies are left.
2. A rank may pass the next step before it has read its number. It then reports that it has no copy of that step.
3. All of this runs on this thread, including the store's connection and the network. The main thread copies the values
   that may change before the next optimizer step. Before that step it waits until the rest is copied (`Snapshot`).
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.tables import default_store
from taskd.adaptors.training.copies.context import CopyHooks, CopyWorld
from taskd.adaptors.training.copies.copy_file import CopyFile, CopyHead
from taskd.adaptors.training.copies.folder import CopyFolder, Incoming
from taskd.adaptors.training.copies.ring import CONNECT_S, Member, Neighbours
from taskd.adaptors.training.copies.room import is_pressed
from taskd.adaptors.training.copies.sharing import copies_state
from taskd.adaptors.training.copies.snapshot import Snapshot
from taskd.adaptors.training.copies.tally import Tally
from taskd.adaptors.training.streams import let_others_capture
from taskd.errors import CopyError, LinkError
from taskd.runtime.system.hidden import HiddenThread, forget
from taskd.runtime.worker.pulse import NEVER

if TYPE_CHECKING:
    from taskd.adaptors.training.copies.exchange import Exchange

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ANSWER: Final = timedelta(seconds=30)
_FIRST_S: Final = 600.0
"""Longest wait for the first copies of all ranks, in seconds."""
_LOOK_S: Final = 0.05
_POLL_S: Final = 0.01
_MEMORY_S: Final = 1.0
"""Interval between checks of the free memory, in seconds."""
_LONGER: Final = 1.1
_MOST_PAUSE_S: Final = 0.5
_PER_RANK_S: Final = 5e-5
"""Shortest interval between a rank's queries to the store, in seconds per rank of the world."""
_GRACE_S: Final = 10.0
_STOP_S: Final = 20.0
"""Longest wait of `Copier.stop` for the thread, in seconds; less than that for a paused rank (`Deadlines.pause_s`)."""
_STEP: Final = re.compile(r"[0-9]{1,20}")
_ONE: Final = 1
_FAILED: Final = 1 << 20
_OVER: Final = 1 << 40


class Copier:
    """The maker of one rank's copies in one world, from `start` until `stop`.

    Args:
        member: this rank.
        folder: folder of this rank's copies.
        every: steps from one copy to the next; 0: as often as costs no more than `SHARE`.
        kept: newest step of which all ranks have copies; -1 without one.
        world: the world whose ranks take part.
        hooks: its callbacks.
    """

    def __init__(
        self, member: Member, folder: CopyFolder, every: int, kept: int, world: CopyWorld, hooks: CopyHooks
    ) -> None:
        self._member, self.folder, self._every = member, folder, every
        self.kept = kept
        self.next = NEVER
        """The step whose commit must call `due`."""
        self.snapshot = Snapshot()
        self.tally = Tally()
        self.whole = not member.earlier or not world.state_key
        """True if this rank copies the state and not only its position. Final once the first round has begun."""
        self.own, self.rests = False, bool(world.state_key)
        """`own`: the state differs between replicas. `rests`: no single death needs a copy."""
        self._step, self._refused, self._begun, self._due_at = hooks
        self._told: tuple[int, bool] | None = None
        self._first = -1
        self._over = ""
        self._stale: tuple[str, ...] = ()
        """Keys of the round before, which all ranks have read by the end of the present one."""
        self._changed = threading.Condition()
        self._stopping = self._asking = self._left = self._taking = False
        self._world = world
        self._host, self._port, self._store = _endpoint()
        self._thread: HiddenThread | None = None

    @property
    def near(self) -> Neighbours:
        """The rank that keeps this rank's copies, and the rank whose copies it keeps."""
        return self._member.near

    # ---- the main thread's side

    def start_here(self, take: Callable[[Snapshot], bool]) -> None:
        """Copy the present step first, and start the thread."""
        self._first = self.next = self._step()
        self.due(self._first, take)
        self._thread = HiddenThread(self._run, "taskd-copies")

    def start(self) -> None:
        """Start the thread; the first copy is of a later step. Idempotent."""
        if self._thread is None:
            step = self._step() + 1
            self._first = self.tally.due_after(step, step, self._every)
            self._thread = HiddenThread(self._run, "taskd-copies")

    def due(self, step: int, take: Callable[[Snapshot], bool]) -> None:
        """Call `take` to snapshot the step that was just committed. `take` returns whether it did."""
        begun_s = time.monotonic()
        on_time = step == self.next and not self._over
        if on_time:
            with self._changed:
                self._taking = True  # keeps `_look_at_memory` from giving this memory back
            try:
                on_time = take(self.snapshot)
            except OSError as error:
                self._over, on_time = error.strerror or str(error), False
            except Exception as error:  # noqa: BLE001 - a state_dict() of the script must not fail a healthy step
                self._over, on_time = f"the state cannot be put down: {type(error).__name__}: {error}", False
        self.tally.by_step = [*self.tally.by_step[-1:], (step, begun_s)]
        with self._changed:
            self._told, self._taking = (self.next, on_time), False
            self._set_next(NEVER)
            self._changed.notify_all()
        self.tally.stall_s += time.monotonic() - begun_s

    def settle(self) -> None:
        """Wait, before the optimizers step, until the tensors that they change are copied."""
        begun_s = time.monotonic()
        self.snapshot.wait()
        self.tally.stall_s += time.monotonic() - begun_s

    def stop(self) -> bool:
        """Stop within `_STOP_S`. No copy becomes whole any more afterwards.

        Returns:
            True if no copy changes any more either. Otherwise the thread still runs, and may write to the memory of
            copies that are not whole. Then no other copier may use this folder.
        """
        with self._changed:
            self._set_next(NEVER)
            self._stopping = True
            self._changed.notify_all()
        end_s = time.monotonic() + _STOP_S
        thread = self._thread
        while thread is not None and thread.is_alive() and not self._asking:  # it writes nothing while it asks
            thread.join(_LOOK_S)
            if time.monotonic() > end_s:
                with self._changed:
                    self._left = True
                return False
        self.snapshot.drop()
        return True

    # ---- the thread

    def _asked(self, ask: Callable[[], T]) -> T:
        """Run a query to the store or a resolver. Raises `CopyError` if `stop` was called: it does not wait for one."""
        with self._changed:
            self._check()
            self._asking = True
        answer = ask()
        with self._changed:
            self._check()
            self._asking = False
        return answer

    def _check(self) -> None:
        if self._stopping:
            raise CopyError("told to stop")

    def _seal(self, file: CopyFile, head: CopyHead) -> None:
        """Make a copy whole. Raises `CopyError` if `stop` has given up: the state may have changed meanwhile."""
        with self._changed:
            if self._left:
                raise CopyError("left behind")
            file.seal(head)

    def _run(self) -> None:
        exchange = None
        let_others_capture()
        try:
            key = self._await_key() if self._member.near.buddy is not None else ""
            store = self._asked(lambda: self._connect(key))
            if key:
                exchange = self._between_nodes(store, key)
            if state := self._world.state_key:
                member, pauses = self._member, map(self._pause, self._pauses())
                self.whole = copies_state(store, member.rank, member.earlier, state, self._asked, pauses)
                if self.whole and self.snapshot.place:
                    self._told = self._first, False  # the first snapshot holds the position only
            self._rounds(store, exchange)
        except (OSError, CopyError, LinkError, RuntimeError) as error:
            self._let_go(exchange)
            self._tell(error)
        finally:
            self._let_go(exchange)

    def _await_key(self) -> str:
        """Wait for the key of the job's ranks. Without one a rank keeps its copies to itself, which is logged once."""
        end_s = time.monotonic() + CONNECT_S
        while (key := self._world.key()) is None:
            self._pause(_POLL_S)
            if time.monotonic() > end_s:
                raise CopyError("the agent has not said whether the job has a secret")
        if not key:
            self._member = self._member._replace(near=Neighbours(None, None))
            if self._member.first and self.kept < 0:
                _log.warning(
                    "the job has no secret, so no copy of a rank's state goes to another node: anybody could read and "
                    "replace it on its way. With a node its ranks' states are lost. Set TASKD_SECRET to the same value "
                    "on every node (make one with: openssl rand -hex 32)"
                )
                forget()
        return key

    def _connect(self, key: str) -> Store:
        """Open a connection for this thread alone, because a query of another thread blocks the connection it uses."""
        host, port = self._host, self._port
        own = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_ANSWER) if host else self._store
        prefix = f"{self._world.prefix}/copies/{self._world.section}"
        if key:
            from taskd.runtime.links.identity import token  # imported late, as in `_between_nodes`

            prefix += f"/{token(key, self._world.name)}"
        return PrefixStore(prefix, own)

    def _between_nodes(self, store: Store, key: str) -> "Exchange":
        """Connect to the ranks of other nodes. Jobs of one node never import ZeroMQ in a rank."""
        from taskd.adaptors.training.copies.exchange import Exchange, own_host

        member, host = self._member, self._asked(lambda: own_host(self._host))
        return Exchange(
            store, host, self._world.name, member.rank, member.near, key, lambda: self._stopping, self._asked
        )

    def _let_go(self, exchange: "Exchange | None") -> None:
        with self._changed:
            self._set_next(NEVER)
        self.snapshot.release()
        if exchange is not None:
            exchange.close()

    def _tell(self, error: Exception) -> None:
        """Log the error, unless the world ends soon: mostly a peer is gone, which is a fault of its own."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._stopping, _GRACE_S):
                _log.warning("rank %d: no more copies are made until the next recovery: %s", self._member.rank, error)

    def _rounds(self, store: Store, exchange: "Exchange | None") -> None:
        step = self._first
        while step < NEVER:
            if self._told is None or step != self._first:  # else `start_here` has taken it
                self._arm(step)
            taken = self._await_commit()
            whole = self._copy(step, exchange, taken)
            result = _ONE if whole else _ONE + (_OVER if self._over else _FAILED)
            self._asked(partial(store.add, f"{step}/done", result))
            step = self._outcome(store, step)

    def _arm(self, step: int) -> None:
        with self._changed:
            if self._step() < step:
                self._told = None
                self._set_next(step)
            if self._step() >= step:  # no commit of this step will come
                self._told = step, False
                self._set_next(NEVER)

    def _set_next(self, step: int) -> None:
        self.next = step
        if not self._stopping:  # a later copier may have set its own step by then
            self._due_at(step)

    def _await_commit(self) -> bool:
        with self._changed:
            while self._told is None and not self._stopping:
                if not self._changed.wait(_MEMORY_S):
                    self._look_at_memory()
            if self._stopping or self._told is None:
                raise CopyError("told to stop")
            return self._told[1]

    def _look_at_memory(self) -> None:
        """Give the memory of all copies back if the job needs it, and make no more."""
        settled = self._told is None and not self._taking
        if not settled or self.folder.asked or self._over or not is_pressed(self.folder.size_bytes):
            return
        self.folder.remove()
        self._over = "their memory was needed for something else"

    def _copy(self, step: int, exchange: "Exchange | None", taken: bool) -> bool:
        """Finish the own copy, and receive the ward's; return whether both are whole."""
        begun_s = _busy_s(exchange)
        file = self.snapshot.complete() if taken else None
        head = None if file is None else CopyHead(
            self._member.rank, step, self.snapshot.size_bytes, self.snapshot.digest(), self.snapshot.place,
            self._world.section, own=self.own,
        )  # fmt: skip
        self.tally.size_bytes = self.snapshot.size_bytes
        if file is not None and head is not None:
            self._seal(file, head)
        theirs: CopyHead | None = head
        if exchange is not None:
            theirs = self._swap(exchange, step, head)
        self.tally.busy_s = _busy_s(exchange) - begun_s
        return head is not None and theirs is not None

    def _swap(self, exchange: "Exchange", step: int, head: CopyHead | None) -> CopyHead | None:
        outgoing = self.snapshot.memory() if head is not None else memoryview(b"")
        incoming = Incoming(self.folder, self.kept)
        theirs = exchange.swap(step, head, outgoing, incoming.room)
        if theirs is not None and incoming.file is not None:
            self._seal(incoming.file, theirs)
        self._over = self._over or incoming.missing
        return theirs if incoming.file is not None else None

    def _outcome(self, store: Store, step: int) -> int:
        """Wait until all ranks have reported their results; return the next step."""
        if self._member.first:
            self._decide(store, step)
        pauses = self._pauses()
        while not self._asked(lambda: store.check([f"{step}/after"])):
            self._pause(next(pauses))
        whole, following = _after(self._asked(lambda: store.get(f"{step}/after")), step)
        if whole:
            self.kept = step
            if not self.tally.whole:
                self._begun()
        self.tally.whole += whole
        self.tally.skipped += not whole
        if following == NEVER:
            self._refused(self._over or "another rank has no room for them, or cannot put its state down")
        return following

    def _decide(self, store: Store, step: int) -> None:
        done, pauses = 0, self._pauses()
        end_s = time.monotonic() + _FIRST_S
        while done % _FAILED < self._member.world_size:
            if not self.tally.whole and time.monotonic() > end_s:
                raise CopyError("not all ranks make them")
            self._pause(next(pauses))
            done = self._asked(lambda: store.add(f"{step}/done", 0))
        following = NEVER if done >= _OVER else self.tally.due_after(step, self._step(), self._every, rests=self.rests)
        self._asked(lambda: store.set(f"{step}/after", f"{int(done < _FAILED)} {following}"))
        for former in self._stale:
            self._asked(partial(store.delete_key, former))
        self._stale = (f"{step}/done", f"{step}/after")

    def _pauses(self) -> Iterator[float]:
        """Yield the pauses between queries to the store. They grow, because a rank may be busy with something long."""
        pause_s = max(_POLL_S, self._member.world_size * _PER_RANK_S)
        while True:
            yield pause_s
            pause_s = max(pause_s, min(pause_s * _LONGER, _MOST_PAUSE_S))

    def _pause(self, length_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, length_s)
        self._check()


def _after(said: bytes, step: int) -> tuple[bool, int]:
    """Return whether the copies are whole, and the next step. Raises `CopyError`: anybody may have written this."""
    whole, _, following = said.decode("ascii", "replace").partition(" ")
    if whole not in ("0", "1") or not _STEP.fullmatch(following) or not step < int(following) <= NEVER:
        raise CopyError(f"the store does not name the step that is copied after step {step}")
    return whole == "1", int(following)


def _endpoint() -> tuple[str, int, Store]:
    """Return host and port of the present world's store, "" and 0 if it does not listen, and the store itself."""
    if not c10d.is_initialized():
        return "", 0, HashStore()
    store = inner = default_store()
    while isinstance(inner, PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, TCPStore):
        return inner.host, inner.port, store
    return "", 0, store


def _busy_s(exchange: "Exchange | None") -> float:
    """Return the processor time of this thread and of its connections, in seconds."""
    return time.thread_time() + (exchange.busy_s() if exchange is not None else 0.0)
