"""Compare a job under stock torchrun with the same job with taskd, in one environment. Pure functions.

Rules:

1. Stock torchrun's run is the bound: status, digest, limits of the ranks, and time with an allowance.
2. A refusal before the script runs in any rank is accepted where the environment allows one: status 2, `error:` and
   `hint:`, no traceback.
3. A job about which taskd printed no refusal is protected: rank 1 was killed, rank 0 keeps its process, and the job
   ends as the undisturbed one.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

UNPROTECTED = re.compile(
    r"takes? no part|cannot take part|stays off|(torchrun's|its) own behaviour|without taskd|runs without recovery"
    r"|leaves (it|this job|the job) to torchrun|torchrun is left as|leaves torch(run)? as"
    r"|as (under |with )?(stock|plain) torchrun|without protection|not protected|unprotected"
)
"""taskd's report that it does not protect a job."""
_CALM, _KILLED, _HANGS = (2.0, 10.0), (3.0, 25.0), (3.0, 40.0)
"""Limits of a job's time: a multiple of stock torchrun's time on the same, perhaps busy machine, and some seconds."""
_OF_TORCH = re.compile(r"^(\[rank\d+\]:)?\[?[WEID]\d{4} |^rank \d+ is done$|^\*+$|^$|^\[Gloo\] ")
_LINES_IF_PROTECTED = 2


@dataclass
class Outcome:
    """A user's view of one job. `status` is None if it had not ended at its limit."""

    status: int | None = None
    seconds: float = 0.0
    console: str = ""
    before_start: str = ""
    """Console when the script began in the first rank."""
    before_order: str = ""
    """Console when all ranks waited for their order."""
    started: list[tuple[int, int]] = field(default_factory=list)
    """Rank and PID of each start of the script."""
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    ghosts: int = 0
    """Starts of the script without LOCAL_RANK."""
    died: bool = False
    orphans: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """Files in the shared memory of the job's own container after its end."""


@dataclass(frozen=True)
class Wanted:
    """An environment's requirements of taskd beyond stock torchrun's behaviour."""

    protected: bool = True
    """True if taskd has to protect the job there. Otherwise it may refuse it or leave it to torchrun."""
    explains: str = ""
    """Regular expression that the console has to match."""
    off: bool = False
    """True if taskd is switched off: it prints nothing on the console."""


def claims_protection(console: str) -> bool:
    """Return whether taskd printed no refusal to protect the job."""
    return not UNPROTECTED.search(console)


def limit_s(stock: Outcome) -> float:
    """Return the time after which the job with taskd counts as hanging, in seconds."""
    return _allowed_s(stock, _HANGS)


def added_lines(console: str, stock: str) -> list[str]:
    """Return the lines that stock torchrun does not print. Lines of torch's own log vary from run to run."""
    known = set(stock.splitlines())
    lines = [line for line in console.splitlines() if line not in known and not _OF_TORCH.match(line)]
    return [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines]


def judge(stock: Outcome, taskd: Outcome, wanted: Wanted) -> list[str]:
    """Return the respects in which taskd is worse, one text for each; an empty list if there are none."""
    if stock.status != 0:
        return [f"plain torchrun does not run here (status {stock.status}): {_last_line(stock.console)}"]
    if not taskd.started and taskd.status is not None:
        return _judge_refusal(stock, taskd, wanted)
    if taskd.status is None:
        return [
            f"hangs: no end within {taskd.seconds:.0f} s, plain torchrun ends after {stock.seconds:.1f} s",
            *_printed(stock, taskd),
        ]
    wrong = _judge_result(stock, taskd)
    if wanted.off:
        wrong += [f"prints while off: {line}" for line in added_lines(taskd.console, stock.console)]
    elif claims_protection(taskd.before_order):
        wrong += _judge_recovery(stock, taskd)
    else:
        wrong += _judge_unprotected(stock, taskd, wanted)
    if wanted.explains and not re.search(wanted.explains, taskd.console):
        wrong.append(f"the console has nothing like {wanted.explains!r}")
    return wrong + _printed(stock, taskd)


def _judge_refusal(stock: Outcome, taskd: Outcome, wanted: Wanted) -> list[str]:
    lines = added_lines(taskd.console, stock.console)
    if wanted.protected or wanted.off or taskd.status != 2 or not lines or not lines[0].startswith("error:"):
        return [f"ends with {taskd.status} before a rank starts: {_last_line(taskd.console)}", *_printed(stock, taskd)]
    return _printed(stock, taskd)


def _judge_result(stock: Outcome, taskd: Outcome) -> list[str]:
    wrong = []
    if taskd.status != stock.status:
        wrong.append(f"ends with {taskd.status}, plain torchrun with {stock.status}")
    for rank, result in stock.results.items():
        seen = taskd.results.get(rank)
        if seen is None:
            wrong.append(f"rank {rank} left no result")
            continue
        different = [name for name in result if name != "pid" and seen[name] != result[name]]
        wrong += [f"rank {rank}: {_differ(name, result[name], seen[name])}" for name in different]
    if taskd.ghosts:
        wrong.append(f"the script ran {taskd.ghosts} times as a lone process without LOCAL_RANK")
    if taskd.orphans:
        wrong.append(f"processes outlive torchrun: {'; '.join(taskd.orphans[:3])}")
    if taskd.leftovers:
        wrong.append(f"leaves in /dev/shm: {', '.join(taskd.leftovers[:3])}")
    if taskd.seconds > _allowed_s(stock, _KILLED if taskd.died else _CALM):
        wrong.append(f"takes {taskd.seconds:.1f} s, plain torchrun {stock.seconds:.1f} s")
    return wrong


def _allowed_s(stock: Outcome, allowance: tuple[float, float]) -> float:
    times, more_s = allowance
    return times * stock.seconds + more_s


def _differ(name: str, stock: Any, taskd: Any) -> str:
    if not isinstance(stock, list):
        return f"{name} is {taskd}, under plain torchrun {stock}"
    added, missing = ([one for one in a if one not in b] for a, b in ((taskd, stock), (stock, taskd)))
    return f"{name} has {added[:5]} more and {missing[:5]} less than under plain torchrun"


def _judge_recovery(stock: Outcome, taskd: Outcome) -> list[str]:
    """Judge a job that claimed protection: rank 1 was killed."""
    wrong = []
    if not taskd.died:
        wrong.append("rank 1 was not killed")
    starts = Counter(rank for rank, _pid in taskd.started)
    if starts[0] != 1 or starts[1] != 2:
        unless = ": taskd takes no part and prints nothing of it" if "recovered in" not in taskd.console else ""
        wrong.append(f"not recovered in place: rank 0 started {starts[0]} times, rank 1 {starts[1]} times{unless}")
    before = added_lines(taskd.before_order, stock.console)
    if len(before) > _LINES_IF_PROTECTED:
        wrong.append(f"prints {len(before)} lines before the first fault: {before[0]}")
    return wrong


def _judge_unprotected(stock: Outcome, taskd: Outcome, wanted: Wanted) -> list[str]:
    wrong = []
    lines = added_lines(taskd.console, stock.console)
    sentence = next(line for line in taskd.before_order.splitlines() if UNPROTECTED.search(line))
    if wanted.protected:
        wrong.append(f"leaves the job unprotected: {sentence}")
    if claims_protection(taskd.before_start):
        wrong.append(f"reports it only after the ranks have started: {sentence}")
    if len(lines) > 1:
        wrong.append(f"prints {len(lines)} lines where one sentence is enough")
    return wrong


def _printed(stock: Outcome, taskd: Outcome) -> list[str]:
    """Return a defect if there is a traceback that stock torchrun does not print."""
    lines = added_lines(taskd.console, stock.console)
    if not any(line.startswith("Traceback (most recent call last)") for line in lines):
        return []
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return [f"prints a traceback: {errors[0] if errors else 'without an error'}"]


def _last_line(console: str) -> str:
    return next((line for line in reversed(console.splitlines()) if line.strip()), "nothing printed")
