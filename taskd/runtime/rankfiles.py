"""The files that one agent keeps for its processes: sockets, black boxes, positions. All gone when the agent ends.

Rules:

1. One directory of mode 0700 in shared memory, named after this process. What dead agents of the same user have left
   behind is removed at the start.
2. Every process gets a black box of its own. The position file belongs to the rank and outlives its processes; a
   fresh world (nobody's state is kept) begins with an empty one.
3. A file that cannot be made costs a feature, not the job: one warning, and the process starts without it.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path

from taskd.config.rundir import job_dir
from taskd.config.worker import WorkerConfig
from taskd.errors import ShimError
from taskd.runtime.blackbox import Box
from taskd.runtime.shape import Shape

logger = logging.getLogger(__name__)
KEPT_BOXES = 64
_SHARED_MEMORY = Path("/dev/shm")


class RankFiles:
    """The directory of one agent."""

    def __init__(self, run_dir: Path, job_id: str) -> None:
        parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _sweep(parent)
        self.directory = Path(tempfile.mkdtemp(prefix=f"taskd-{os.getpid()}-", dir=parent))
        self.socket = self.directory / "agent.sock"
        self._run_dir = run_dir
        self._kept = job_dir(run_dir, job_id) / "boxes"
        self._boxes: dict[tuple[int, int], Box] = {}

    def prepare(
        self, rank: int, incarnation: int, generation: int, shape: Shape, term: int = 0, *, joins: bool
    ) -> WorkerConfig:
        """Make the files of a process that is about to start; what its environment has to say of them."""
        position = self.directory / f"position-{rank}"
        if not joins:
            self.forget(rank)
        return WorkerConfig(
            agent_socket=self.socket,
            agent_pid=os.getpid(),
            run_dir=self._run_dir,
            rank=rank,
            incarnation=incarnation,
            generation=generation,
            term=term,
            joins=joins,
            blackbox=self._make_box(rank, incarnation),
            position=position,
            members=shape.members,
            places=shape.places,
        )

    def keep_below(self, folder: Path) -> None:
        """The folder of the job's records, where it is known better."""
        self._kept = folder / "boxes"

    def forget(self, rank: int) -> None:
        """A rank starts anew, or another takes its place: what is known of positions and set-up is not its own."""
        for path in self.directory.glob(f"position-{rank}*"):
            if path.name.partition(".")[0] == f"position-{rank}":
                path.unlink(missing_ok=True)

    def box(self, rank: int, incarnation: int) -> Box | None:
        """The black box of a process that was prepared."""
        return self._boxes.get((rank, incarnation))

    def close(self) -> None:
        """Remove everything. Whoever waits on a box is let go."""
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def discard(self, rank: int, incarnation: int, keep_as: str = "") -> None:
        """Remove the box of a process that is gone. Whoever waits on it is let go.

        With a name it stays among the records of the job, the newest `KEPT_BOXES` of which do.
        """
        box = self._boxes.pop((rank, incarnation), None)
        if box is not None:
            if keep_as:
                self._keep(box.path, keep_as)
            box.close()
            box.path.unlink(missing_ok=True)

    def _keep(self, box: Path, name: str) -> None:
        try:
            self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(box, self._kept / name)
            kept = sorted(self._kept.glob("*.box"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-KEPT_BOXES]:
                path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("a black box cannot be kept: %s cannot be written (%s)", self._kept / name, error.strerror)

    def _make_box(self, rank: int, incarnation: int) -> Path | None:
        path = self.directory / f"box-{rank}-{incarnation}"
        try:
            self._boxes[rank, incarnation] = Box.create(path)
        except ShimError as error:
            logger.warning("rank %d runs without a black box: %s", rank, error)
            return None
        return path


def _sweep(parent: Path) -> None:
    for directory in parent.glob("taskd-*-*"):
        pid = directory.name.split("-")[1]
        try:
            if pid.isdecimal() and directory.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # another agent sweeps too
