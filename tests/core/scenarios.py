"""Jobs with a fault of one rank or a few, as their agents would report them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from taskd.core.diagnosis.diagnose import diagnose
from taskd.core.diagnosis.evidence import (
    Cgroup,
    Child,
    Clocks,
    Collective,
    Communicator,
    Ending,
    Evidence,
    FatalSignal,
    LockFile,
    NonFinite,
    Process,
    PythonError,
    RunState,
    Sender,
    Stillness,
)
from taskd.core.diagnosis.facts import FACTS, flat, of_facts
from taskd.core.diagnosis.findings import Diagnosis, Kind
from taskd.core.diagnosis.jobview import Cut
from taskd.core.diagnosis.operation import Operation
from taskd.core.diagnosis.rhythm import Hang
from taskd.wire.kinds import JobRank, NodeRank

HANG = Hang(since_s=0.0, silent_s=3.1, limit_s=3.0, usual_s=1.0, step=41, reason="no progress for 3.1 s after step 41")
WORLD = 7
NUMBER = 57
PATTERN = (
    (Operation.ALLREDUCE, 4 << 20),
    (Operation.ALLREDUCE, 1 << 20),
    (Operation.ALLGATHER, 256),
)
"""Repeated sequence of calls of each rank. Number 57 is the third of them."""
CLOSED = PythonError(
    "RuntimeError", "[gloo/transport/tcp/pair.cc:544] Connection closed by peer [::1]:4", "train.py:9 in f"
)


def known_of(**facts: Any) -> Evidence:
    """Return evidence of these facts, given by name, and of nothing else."""
    assert facts.keys() <= set(FACTS)
    return of_facts(facts)


def but(known: Evidence, **facts: Any) -> Evidence:
    """Return the same evidence, with these facts replaced."""
    return known_of(**{**flat(known), **facts})


def diagnosed(
    evidence: Mapping[int, Evidence], members: Iterable[int] = (), hang: Hang | None = None, cuts: Collection[Cut] = ()
) -> Diagnosis | None:
    """Return the diagnosis of a job. Ranks are plain numbers; without `members` the ranks with evidence are the job."""
    of_rank = {JobRank(rank): known for rank, known in evidence.items()}
    return diagnose(of_rank, tuple(map(JobRank, members)) or None, hang, cuts)


def call(number: int, comm: int = WORLD, *, opened: bool = False, **more: Any) -> Collective:
    """Return collective `number` as every rank calls it."""
    op, size = PATTERN[(number - 1) % len(PATTERN)]
    age_s = (NUMBER - number) * 0.1 + 3.0
    values: dict[str, Any] = {"op": op, "bytes": size, "entered_s": age_s, "left_s": None if opened else age_s - 0.05}
    return Collective(comm=comm, number=number, **{**values, **more})


def history(until: int, comm: int = WORLD, length: int = 12) -> tuple[Collective, ...]:
    """Return the calls up to this one, the newest first. All of them have ended."""
    return tuple(call(number, comm) for number in range(until, max(0, until - length), -1))


QUIET = Stillness(window_s=1.5, main="a lock, with a time limit", io_bytes=0, disks_idle=False)
"""Nothing has run except the threads that always run. A rank that waits in a collective is in this state."""


def base(rank: int, world: int) -> Evidence:
    """Return the evidence of a healthy rank with no open call."""
    return known_of(
        node=rank // 2,
        process=Process(pid=4000 + rank, state=RunState.SLEEPING, wchan="futex_wait_queue", busy=0.01, still=QUIET),
        cgroup=Cgroup(oom_kills=0, frozen=False),
        life_lost=False,
        clocks=Clocks(native_s=0.1, gil_s=0.0, main_s=0.0),
        step=41,
        step_s=3.1,
        communicators=(Communicator(WORLD, NUMBER - 1, rank, world),),
        collectives=history(NUMBER - 1),
    )


def entered(known: Evidence, number: int = NUMBER, **more: Any) -> Evidence:
    """Return the evidence of a rank that waits in this collective."""
    calls = (call(number, opened=True, **more), *(one for one in known.calls.collectives if one.number < number))
    table = tuple(replace(one, number=number) if one.comm == WORLD else one for one in known.calls.communicators)
    return but(known, collectives=calls, communicators=table, clocks=Clocks(0.1, 0.0, 3.0))


Change = Callable[[Evidence], Evidence]


def process(**facts: Any) -> Change:
    """Return a change: the rank does not enter, and /proc shows these facts of its process."""
    return lambda known: replace(known, process=replace(known.process, **facts))  # type: ignore[type-var]


def facts(**more: Any) -> Change:
    """Return a change: the rank does not enter, and these facts are known of it."""
    return lambda known: but(known, **more)


def both(*changes: Change) -> Change:
    def change(known: Evidence) -> Evidence:
        for one in changes:
            known = one(known)
        return known

    return change


def ended(status: int | None = None, signum: int | None = None, age_s: float = 0.2, **more: Any) -> Change:
    return facts(ending=Ending(status, signum, age_s, **more), life_lost=True)


def crashed(signum: int, sender: Sender | None = None, *frames: str) -> Change:
    fatal = FatalSignal(signum, None if sender else 0x10, "python", frames, sender)
    return both(ended(signum=signum), facts(fatal=fatal))


def native(wchan: str, *stack: str, gil_s: float = 0.0, waits: str = "") -> Change:
    """Return a change: Python's main thread does not answer."""
    still = replace(QUIET, waits=(f"its main thread waits for {waits}",) if waits else ())
    return both(process(wchan=wchan, still=still), facts(clocks=Clocks(0.1, gil_s, 3.0), stack=stack))


@dataclass(frozen=True)
class Fault:
    """Kind of fault: the evidence of the culprits and of the other ranks, and the expected diagnosis."""

    kind: Kind
    culprit: Change
    others: Change = entered
    hang: bool = True
    words: tuple[str, ...] = ()
    cuts: bool = False
    relative: bool = False
    """Only a comparison with the majority shows it."""
    victims: bool = True
    proven: bool = True

    def evidence(self, culprits: Collection[int] = (2,), world: int = 4) -> dict[int, Evidence]:
        """Return the evidence of all ranks."""
        return {rank: (self.culprit if rank in culprits else self.others)(base(rank, world)) for rank in range(world)}

    def diagnosis(
        self, evidence: Mapping[int, Evidence], culprits: Collection[int] = (2,), world: int = 4
    ) -> Diagnosis | None:
        """Return the diagnosis that follows from the evidence."""
        away = {rank // 2 for rank in culprits}
        nodes = set(range((world + 1) // 2)) - away
        cuts = [Cut(*map(NodeRank, pair)) for lost in away for node in nodes for pair in ((lost, node), (node, lost))]
        return diagnosed(evidence, range(world), HANG if self.hang else None, cuts if self.cuts else ())


def _raised(kind: str, message: str, where: str = "train.py:31 in step") -> Change:
    return both(ended(status=1), facts(error=PythonError(kind, message, where)))


def _leaves(status: str) -> Change:
    """Return a change: the process reports its exit while it still lives."""
    return facts(error=PythonError("SystemExit", status, "train.py:31 in step"))


def _skips(known: Evidence) -> Evidence:
    return entered(known, op=PATTERN[NUMBER % 3][0], bytes=PATTERN[NUMBER % 3][1])


_PEER_LOST: Change = both(ended(status=1, age_s=0.1), facts(error=CLOSED))
_RUNS = replace(QUIET, ran=("its main thread ran (99% of a core)",), share=0.99)
_SLEEPS = process(wchan="0", state=RunState.RUNNING, busy=0.99, still=_RUNS)

FAULTS = {
    "SIGKILL": Fault(Kind.KILLED, ended(signum=9), hang=False, words=("SIGKILL (exit code 137)",)),
    "SIGKILL while sizes differ on purpose": Fault(
        Kind.KILLED,
        ended(signum=9),
        lambda known: entered(known, bytes=100 + known.calls.communicators[0].rank),
        hang=False,
    ),
    "SIGKILL, the launcher has ended the others": Fault(
        Kind.KILLED, ended(signum=9), ended(signum=15, age_s=0.1), hang=False
    ),
    "SIGKILL, peers have lost a connection of their own": Fault(
        Kind.KILLED,
        ended(signum=9),
        both(ended(status=1, age_s=0.1), facts(error=PythonError("ConnectionResetError", "[Errno 104]"))),
        hang=False,
    ),
    "SIGKILL, peers have failed": Fault(Kind.KILLED, ended(signum=9), _PEER_LOST, hang=False),
    "SIGTERM": Fault(
        Kind.KILLED,
        both(ended(signum=15), facts(terminated_by=Sender(812, 0, "kubelet"))),
        hang=False,
        words=("SIGTERM (exit code 143)", "sent by kubelet, pid 812, uid 0"),
    ),
    "SIGSEGV in native code": Fault(
        Kind.CRASHED,
        crashed(11, None, "libfast.so+0x1234", "libtorch.so+0x99"),
        hang=False,
        words=(
            "SIGSEGV (exit code 139)",
            "invalid memory access at address 0x10",
            "libfast.so+0x1234 < libtorch.so+0x99",
        ),
    ),
    "SIGSEGV that was sent": Fault(
        Kind.KILLED, crashed(11, Sender(77, 1000)), hang=False, words=("SIGSEGV", "sent by pid 77, uid 1000")
    ),
    "SIGSEGV, not reaped yet": Fault(
        Kind.CRASHED,
        both(facts(life_lost=True, fatal=FatalSignal(11, 0, "pt_main", ("libx.so+0x1",))), process(exiting=True)),
        hang=False,
        words=("libx.so+0x1",),
    ),
    "abort()": Fault(
        Kind.ABORTED, crashed(6, Sender(4002, 0), "libc.so.6+0x1"), _PEER_LOST, hang=False, words=("abort()",)
    ),
    "os._exit(3)": Fault(Kind.EXITED, ended(status=3), _PEER_LOST, hang=False, words=("exit code 3",)),
    "sys.exit(0) too early": Fault(Kind.EXITED_EARLY, ended(status=0), hang=False, words=("exit code 0", "Rank 2")),
    "sys.exit(0), peers have failed": Fault(Kind.EXITED_EARLY, ended(status=0, age_s=0.4), _PEER_LOST, hang=False),
    "sys.exit(0) in the training function": Fault(Kind.EXITED_EARLY, _leaves("0"), hang=False),
    "sys.exit(3) in the training function": Fault(Kind.EXITED, _leaves("3"), hang=False, words=("SystemExit: 3",)),
    "uncaught exception": Fault(
        Kind.EXCEPTION,
        _raised("KeyError", "'lr'"),
        _PEER_LOST,
        hang=False,
        words=("KeyError: 'lr', at train.py:31 in step",),
    ),
    "exception, not dead yet": Fault(
        Kind.EXCEPTION,
        facts(error=PythonError("ValueError", "no", "a.py:1 in f")),
        hang=False,
        words=("ValueError: no",),
    ),
    "disk full": Fault(
        Kind.DISK_FULL,
        _raised("OSError", "[Errno 28] No space left on device: '/ckpt/5'"),
        hang=False,
        words=("/ckpt/5",),
    ),
    "disk full in torch.save": Fault(
        Kind.DISK_FULL,
        both(_raised("RuntimeError", "PytorchStreamWriter failed writing file data/0"), facts(full_disk="/ckpt")),
        hang=False,
        words=("no space left on /ckpt",),
    ),
    "disk full, the writer waits": Fault(
        Kind.DISK_FULL, both(native("balance_dirty_pages", waits="a write"), facts(full_disk="/ckpt")), proven=False
    ),
    "host OOM in the cgroup": Fault(
        Kind.OOM_CGROUP,
        both(ended(signum=9), facts(cgroup=Cgroup(oom_kills=1, limit_bytes=1 << 30))),
        hang=False,
        words=("oom_kill 1", "limit is 1 GiB"),
    ),
    "host OOM, not reaped yet": Fault(
        Kind.OOM_CGROUP, facts(life_lost=True, cgroup=Cgroup(oom_kills=2)), hang=False, words=("struck 2 times",)
    ),
    "host OOM of a DataLoader child": Fault(
        Kind.OOM_CGROUP,
        both(
            _raised("RuntimeError", "DataLoader worker (pid 9) is killed by signal: Killed. "), facts(cgroup=Cgroup(1))
        ),
        hang=False,
    ),
    "MemoryError": Fault(Kind.OOM_HOST, _raised("MemoryError", ""), hang=False),
    "device OOM": Fault(Kind.OOM_DEVICE, _raised("torch.OutOfMemoryError", "CUDA out of memory. Tried"), hang=False),
    "dying": Fault(Kind.DYING, both(facts(life_lost=True), process(exiting=True)), hang=False),
    "SIGSTOP": Fault(Kind.STOPPED, both(entered, process(state=RunState.STOPPED))),
    "SIGSTOP outside of a collective": Fault(Kind.STOPPED, process(state=RunState.STOPPED), words=("allgather 57",)),
    "freezer": Fault(Kind.FROZEN, both(entered, facts(cgroup=Cgroup(frozen=True)))),
    "uninterruptible sleep": Fault(
        Kind.UNINTERRUPTIBLE,
        both(native("nfs_wait"), process(state=RunState.UNINTERRUPTIBLE, state_s=2.0)),
        words=("nfs_wait",),
        proven=False,
    ),
    "uninterruptible sleep, and no disk does anything": Fault(
        Kind.UNINTERRUPTIBLE,
        both(
            native("io_schedule"),
            process(state=RunState.UNINTERRUPTIBLE, state_s=2.0, still=replace(QUIET, disks_idle=True)),
        ),
    ),
    "GIL held by a C loop": Fault(
        Kind.GIL_HELD,
        both(native("0", "train.py:7 in loop", gil_s=3.0), process(still=_RUNS)),
        words=("train.py:7 in loop", "Not proven: its main thread ran (99% of a core)"),
        proven=False,
    ),
    "lock of a build, by nobody known": Fault(
        Kind.LOCK_FILE,
        both(
            native("hrtimer_nanosleep", "file_baton.py:43 in wait", waits="a sleep"),
            facts(lock_file=LockFile("/cache/ext/lock", "it is not signed")),
        ),
        words=("waits for the lock file /cache/ext/lock: it is not signed",),
        proven=False,
    ),
    "Python deadlock": Fault(
        Kind.DEADLOCK, native("futex_wait_queue", "/usr/lib/python3.11/threading.py:320 in wait", "train.py:7 in f")
    ),
    "blocked in native code": Fault(
        Kind.BLOCKED,
        native("hrtimer_nanosleep", "train.py:8 in g", "train.py:1 in f", waits="a sleep"),
        words=("hrtimer_nanosleep", "Stack of rank 2: train.py:8 in g, called by train.py:1 in f."),
        proven=False,
    ),
    "infinite loop in Python": Fault(
        Kind.LOOP,
        both(_SLEEPS, facts(stack=("train.py:5 in spin",))),
        words=("train.py:5 in spin", "99% of a core"),
        proven=False,
    ),
    "data loader blocked": Fault(
        Kind.DATA_BLOCKED,
        both(
            native("do_poll", "/x/torch/utils/data/dataloader.py:1131 in _try_get_data", waits="a poll"),
            process(children=(Child(9),)),
        ),
        proven=False,
    ),
    "data loader blocked, as the rank says": Fault(
        Kind.DATA_BLOCKED, both(native("0", waits="a poll"), facts(data_wait_s=3.0)), words=("for 3.0 s",), proven=False
    ),
    "device hangs before the kernel in which others wait": Fault(
        Kind.DEVICE_BEHIND,
        both(native("poll_schedule_timeout", "train.py:9 in step", waits="a poll"), facts(kernel_s=0.0)),
        both(native("poll_schedule_timeout", waits="a poll"), facts(kernel_s=3.0)),
        proven=False,
        words=("for 3.0 s, on which no kernel of NCCL runs, at train.py:9 in step", "Ranks 0, 1 and 3 wait"),
    ),
    "behind, nothing known": Fault(
        Kind.BEHIND, facts(clocks=None, process=None), words=("has not entered allgather 57",), proven=False
    ),
    "skips a collective, next is another": Fault(
        Kind.SKIPPED,
        _skips,
        words=("allreduce 57", "where the others (ranks 0, 1 and 3) have allgather 57"),
        relative=True,
    ),
    "skips a collective and has finished": Fault(Kind.SKIPPED, facts(step=43)),
    "sends another size": Fault(
        Kind.SIZE_MISMATCH, lambda known: entered(known, bytes=512), words=("(512 B)", "(256 B)"), relative=True
    ),
    "sends another size, gloo raises": Fault(
        Kind.SIZE_MISMATCH,
        lambda known: entered(known, bytes=512),
        both(entered, facts(error=PythonError("RuntimeError", "op.preamble.nbytes <= op.nbytes. 512 vs 256"))),
        hang=False,
        relative=True,
    ),
    "calls another operation": Fault(
        Kind.OP_MISMATCH, lambda known: entered(known, op=Operation.BROADCAST, peer=0, bytes=8), relative=True
    ),
    "another root": Fault(
        Kind.OP_MISMATCH,
        lambda known: entered(known, op=Operation.BROADCAST, peer=1, bytes=8),
        lambda known: entered(known, op=Operation.BROADCAST, peer=0, bytes=8),
        relative=True,
    ),
    "connection cut": Fault(Kind.CONNECTION_CUT, entered, cuts=True, relative=True),
    "connection cut, errors": Fault(
        Kind.CONNECTION_CUT, facts(error=CLOSED), facts(error=CLOSED), cuts=True, hang=False, relative=True
    ),
    "NaN loss": Fault(
        Kind.NON_FINITE,
        facts(non_finite=NonFinite(41)),
        facts(non_finite=NonFinite(42)),
        hang=False,
        words=("loss nan in step 41",),
        victims=False,
    ),
    "orphaned DataLoader child": Fault(
        Kind.ORPHANED,
        process(orphans=(Child(99, RunState.RUNNING),)),
        lambda known: known,
        hang=False,
        words=("99 (R)",),
        victims=False,
    ),
}
"""All faults. If there are several culprits, all have the same evidence."""
