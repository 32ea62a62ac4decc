"""`taskd blackbox`: the records of a process or of a whole job, living or long dead, for a person or as JSON.

Rules:

1. A word of digits is a process; write ./123 for a file of that name. A directory is a run directory or a job's folder.
2. Nothing is changed, and no process is disturbed.
3. Exit codes: 0 if records were shown; 1 if no record can be read, with the reason; 2 for wrong usage.
"""

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from taskd.cli.complaint import complain
from taskd.cli.documents import as_text, job_document, process_document
from taskd.cli.job_page import job_page, jobs_table
from taskd.cli.process_page import process_page
from taskd.cli.tables import output, page
from taskd.config.process import environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.errors import RecordError, ShimError, TaskdError
from taskd.runtime.box.blackbox import Box
from taskd.runtime.records.faultfile import read_evidence
from taskd.runtime.records.lookup import agents_boxes, mapped_boxes, namespaced_pids
from taskd.runtime.records.snapshot import BoxSnapshot, take_snapshot
from taskd.runtime.records.timeline import read_jobs
from taskd.wire.kinds import JobRank

_MOST_DIGITS: Final = 19
_EPILOG: Final = """\
FILE     a black box: of a living process in /dev/shm/taskd-*/, of a dead one in RUN_DIR/JOB_ID/boxes/
PID      a living rank
RUN_DIR  the records of jobs (TASKD_RUN_DIR on the manager's node), or one job's folder in it

exit code: 0 it was told, 1 nothing there can be read (the reason is shown), 2 wrong usage
"""


def blackbox(arguments: Sequence[str]) -> int:
    """Show the records. Return 0, or 1 with the reason on standard error. Exits for wrong usage."""
    options = _parser().parse_args(list(arguments))
    try:
        target = options.target if options.target is not None else str(run_dir(Source(environment())))
        _tell(target, as_json=options.json, everything=options.all)
        sys.stdout.flush()
    except TaskdError as error:
        complain("blackbox", error)
        return 1
    except BrokenPipeError:  # the reader of the pipe has closed it: that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taskd blackbox",
        description="What is recorded of one process or of a whole job, living or long dead.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", metavar="FILE|PID|RUN_DIR", nargs="?", help="what to show (default: the run directory)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--all", action="store_true", help="every fault in full, all threads, all collectives")
    return parser


def _tell(target: str, *, as_json: bool, everything: bool) -> None:
    if target.isdecimal() and len(target) <= _MOST_DIGITS:
        _process(*_find(int(target)), as_json=as_json, everything=everything)
        return
    try:
        path = Path(target).resolve(strict=True)
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise RecordError(
            f"found nothing at {target} ({reason}); expected a black box, a process, or a run directory, of this user"
        ) from error
    if stat.S_ISDIR(mode):
        _job(path, as_json=as_json, everything=everything)
    else:
        _process(path, None, as_json=as_json, everything=everything)


def _find(pid: int) -> tuple[Path, int]:
    """Return the box of a living process, and its pid in our namespace. Raises `RecordError` if it has no box."""
    own = namespaced_pids(pid)
    paths = mapped_boxes(pid)
    for path in paths:
        with closing(Box.open(path)) as box:
            owner = box.read().owner_pid
        if owner in own:
            return path, pid
    if paths:
        raise RecordError(f"process {pid} is an agent with {len(paths)} ranks, and no rank itself; give a rank's pid")
    raise RecordError(f"process {pid} has no black box: it is no rank under taskd (a child of a rank has none)")


def _process(path: Path, pid: int | None, *, as_json: bool, everything: bool) -> None:
    snapshot = take_snapshot(path, pid)
    if as_json:
        print(as_text(process_document(snapshot)))
        return
    page(output(), process_page(snapshot, everything=everything))


def _job(directory: Path, *, as_json: bool, everything: bool) -> None:
    jobs = read_jobs(directory)
    job = jobs[-1]
    read = partial(read_evidence, Path(job.folder))
    ranks = _living(job.pids) if job.ended is None else []
    kept = [(box, _snapshot(Path(box.file))) for box in job.boxes]
    if as_json:
        print(as_text(job_document(jobs, ranks, kept, read, everything=everything)))
        return
    listed = list(jobs_table(jobs[::-1])) if len(jobs) > 1 else []
    page(output(), [*listed, *job_page(job, ranks, kept, read, everything=everything)])


def _living(pids: dict[JobRank, int]) -> list[BoxSnapshot]:
    """Return a snapshot of each living rank of a job on this machine, sorted by rank."""
    found: dict[JobRank, BoxSnapshot] = {}
    for path in agents_boxes():
        one = _snapshot(path)
        if one is not None and pids.get(one.rank) == one.pid:
            found[one.rank] = one
    return [found[rank] for rank in sorted(found)]


def _snapshot(path: Path) -> BoxSnapshot | None:
    """Take a snapshot of a box. Return None if the box has just gone, or belongs to another user or version."""
    try:
        return take_snapshot(path)
    except ShimError:
        return None
