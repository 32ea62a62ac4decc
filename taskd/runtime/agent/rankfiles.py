"""Files that one agent keeps for its processes: black boxes, positions, copies. All are gone when the agent ends.

Rules:

1. Boxes lie in a directory of mode 0700 in shared memory, or in the temporary folder if that is unusable. It is named
   after this process and locked by it. At the start, directories of the same user's dead agents are removed. A locked
   one belongs to a living agent, in any container. A directory that was swept away is made anew.
2. Every process gets a black box of its own. A rank's memory (`RankMemory`) outlives its processes. A fresh world keeps
   no state, and begins with empty memory.
3. Boxes of the dead are kept in the folder of the manager's records. If that is not visible here, they are kept in a
   folder of this agent's own, never in one of another job (`jobfolder.py`).
4. A file that cannot be made costs a feature, not the job: one warning, and the process starts without it.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from taskd.config.worker import WorkerConfig
from taskd.errors import ShimError
from taskd.runtime.agent.rank_memory import RankMemory
from taskd.runtime.agent.shape import Shape
from taskd.runtime.agent.sockets import LocalServer
from taskd.runtime.box.blackbox import Box
from taskd.runtime.folders.jobfolder import JobFolder, locked, marked
from taskd.runtime.folders.nameless import is_open_to_others
from taskd.runtime.folders.ownfolder import OwnFolder
from taskd.runtime.folders.rank_folders import SHARED_MEMORY, free_shared_memory, temporary_folder
from taskd.runtime.folders.regular import open_record
from taskd.wire.kinds import LocalRank

logger = logging.getLogger(__name__)
KEPT_BOXES = 64
_MOST_BOX_BYTES = 1 << 20


class RankFiles:
    """Directory of one agent, and the memory that it keeps for its ranks.

    Args:
        run_dir: directory of the job's records.
        job_id: the job's name.
        named: whether its socket and memory have names in the directory: ranks may reach nothing without one.
    """

    def __init__(self, run_dir: Path, job_id: str, *, named: bool = False) -> None:
        self._parent = _parent()
        _sweep(self._parent)
        self.directory, lock = _made(self._parent)
        self._lock: int | None = lock
        self.socket = self.directory / "agent.sock"
        """Path at which processes of this node connect, once the server listens."""
        self.deserted = False
        """True if ranks live on after `close`, and may still open its files."""
        self._named = named or not is_open_to_others()
        self._run_dir = run_dir
        self._job_id = job_id
        self.records = ""
        """Mark of the folder of the job's records; "" while it is not known."""
        self._own: JobFolder | None = None
        self._boxes: dict[tuple[LocalRank, int], Box] = {}
        self._memory: dict[LocalRank, RankMemory] = {}
        self._setups: dict[LocalRank, str] = {}
        """Digests of the ranks' recorded set-ups."""
        self._missed = ""
        """Reason of the newest failure to make a box or memory."""

    def server(self, *, listens: bool) -> LocalServer:
        """Make the agent's side of its links; processes can connect if it `listens`. Raises `LinkError`."""
        server = LocalServer(self.socket, listens=listens, named=self._named)
        self.socket, self._named = server.path, server.named
        return server

    def prepare(
        self, local_rank: LocalRank, incarnation: int, generation: int, shape: Shape, term: int = 0, *, joins: bool
    ) -> WorkerConfig:
        """Make the files of a process that is about to start, and return its configuration, which names them."""
        former = None if joins else self._memory.pop(local_rank, None)
        self._hold_directory()
        memory = self._memory.get(local_rank) or self._make_memory(local_rank)
        if former is not None:
            former.close()
        return WorkerConfig(
            agent_socket=self.socket,
            agent_pid=os.getpid(),
            run_dir=self._run_dir,
            incarnation=incarnation,
            generation=generation,
            term=term,
            joins=joins,
            blackbox=self._make_box(local_rank, incarnation),
            position=None if memory is None else memory.position.path,
            setup=None if memory is None else memory.setup.path,
            setup_digest=self._setups.get(local_rank, ""),
            marks=None if memory is None else memory.marks.path,
            copies=() if memory is None else memory.copies_at,
            members=shape.members,
            places=shape.places,
        )

    def forget(self, local_rank: LocalRank) -> None:
        """Drop the memory and set-up of a rank, because it starts anew or another rank takes its place."""
        self._setups.pop(local_rank, None)
        memory = self._memory.pop(local_rank, None)
        if memory is not None:
            memory.close()

    def recorded_setup(self, local_rank: LocalRank, digest: str) -> None:
        """Record the digest of the file with the results of the set-up's collectives."""
        self._setups[local_rank] = digest

    def box(self, local_rank: LocalRank, incarnation: int) -> Box | None:
        """Return the black box of a process that was prepared."""
        return self._boxes.get((local_rank, incarnation))

    def close(self) -> None:
        """Remove everything, and wake the threads that wait on a box."""
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        for memory in self._memory.values():
            memory.close(holds_numbers=self.deserted)
        self._memory.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._own is not None:
            self._own.close()
            self._own = None

    def discard(self, local_rank: LocalRank, incarnation: int, keep_as: str = "") -> None:
        """Remove the box of a process that is gone, and wake a thread that waits on it.

        With a name, the box is kept in the job's records, which hold the newest `KEPT_BOXES` boxes.
        """
        box = self._boxes.pop((local_rank, incarnation), None)
        if box is not None:
            if keep_as:
                self._keep(box.path, keep_as)
            box.close()
            box.path.unlink(missing_ok=True)

    def _keep(self, box: Path, name: str) -> None:
        try:
            with open_record(box) as file:
                content = file.read(_MOST_BOX_BYTES)
            with closing(self._folder()) as folder, closing(OwnFolder(folder.path / "boxes", folder)) as boxes:
                boxes.write(name, content)
                kept = sorted((known for known in boxes.names() if known.endswith(".box")), key=boxes.changed_s)
                for former in kept[:-KEPT_BOXES]:
                    boxes.remove(former)
        except OSError as error:
            where = error.filename2 or error.filename or self._run_dir
            logger.warning("the black box %s cannot be kept: %s (%s)", name, where, error.strerror)

    def _folder(self) -> OwnFolder:
        found = marked(self._run_dir, self._job_id, self.records)
        if found is None:
            self._own = self._own or JobFolder(self._run_dir, self._job_id)
            found = self._own.path
        return OwnFolder(found, make=False)

    def _make_box(self, local_rank: LocalRank, incarnation: int) -> Path | None:
        path = self.directory / f"box-{local_rank}-{incarnation}"
        try:
            self._boxes[local_rank, incarnation] = Box.create(path)
        except ShimError as error:
            self._warn(f"local rank {local_rank} runs without a black box (said once of all ranks)", str(error))
            return None
        return path

    def _make_memory(self, local_rank: LocalRank) -> RankMemory | None:
        try:
            made = self._memory[local_rank] = RankMemory(local_rank, self.directory, named=self._named)
        except OSError as error:
            self._warn(
                f"what local rank {local_rank} stands at does not outlive its process (said once of all ranks)",
                f"no memory for it: {error}",
            )
            return None
        return made

    def _warn(self, what: str, why: str) -> None:
        if why != self._missed:
            self._missed = why
            logger.warning("%s: %s", what, why)

    def _hold_directory(self) -> None:
        """Make another directory if ours is gone, or its name leads to another one, which may be a stranger's."""
        if self._lock is None or _same(self.directory, self._lock):
            return
        former = self.directory
        try:
            self.directory, lock = _made(self._parent)
        except OSError as error:
            self._warn(f"{former}, the directory of this node's black boxes, was removed by somebody else", str(error))
            return
        os.close(self._lock)
        self._lock = lock
        for local_rank in tuple(self._memory) if self._named else ():
            self.forget(local_rank)  # no process can reach it any more
        logger.warning(
            "%s, the directory of this node's black boxes, was removed by somebody else; new ones are in %s",
            former,
            self.directory,
        )


def _parent() -> Path:
    """Return the folder of shared memory. If it is not writable or too small, warn and return the temporary folder."""
    _, wrong = free_shared_memory()
    if not wrong:
        return SHARED_MEMORY
    instead = temporary_folder()
    logger.warning(
        "%s: %s; the files of the node's ranks are in %s, which may be slower", SHARED_MEMORY, wrong, instead
    )
    return instead


def _sweep(parent: Path) -> None:
    """Remove the directories of dead agents. On a file system without locks all stay."""
    for directory in parent.glob("taskd-*-*"):
        try:
            if not directory.name.split("-")[1].isdecimal() or directory.lstat().st_uid != os.getuid():
                continue
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
        except OSError:
            continue  # its agent lives, or another one sweeps too


def _same(directory: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.lstat(directory), os.fstat(lock))
    except OSError:
        return False


def _made(parent: Path) -> tuple[Path, int]:
    """Make a new directory; return it and the lock on it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=f"taskd-{os.getpid()}-", dir=parent))
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # swept, by an agent that came before the lock
        if locked(lock) and directory.exists():
            return directory, lock
        os.close(lock)
