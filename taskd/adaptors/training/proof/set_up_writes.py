"""Report, in the first start, of files that a new process's set-up would empty and folders that it would make again.

Rules:

1. A file matters if the set-up has emptied it and the training writes to it: it is still open then, or is opened later.
   A file that the set-up has written and closed is written again with the same content, and is not reported. Neither is
   a file with the time or the process in its path: a new process opens another.
2. A folder matters if its name differs in each process: by time, by process, or by a count of existing folders.
3. A statement under a condition that calls `taskd.restart_count()` runs in the first start alone, and is left out.
4. Weights stay exact, and stock torchrun does the same at each restart. So it is a warning, and no reason to restart.
"""

import ast
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from taskd.adaptors.groups.sites import innermost_line, is_users, users_files
from taskd.runtime.worker.file_events import EMPTIES, WRITES, listen, stop_listening
from taskd.runtime.worker.set_up_files import FileEvent, SetUpFiles

_DAY_S: Final = 86400
_DIGITS: Final = 10
"""Number of digits of the seconds since 1970."""
_MOST_BYTES: Final = 1 << 20
_ASKS: Final = "restart_count"
_DIGIT: Final = re.compile(r"\d")


class SetUpWrites:
    """Check of the set-up's file events of one process.

    Args:
        files: events of the set-up.
        tell: called with one sentence for each finding.
    """

    def __init__(self, files: SetUpFiles, tell: Callable[[str], None]) -> None:
        self._files, self._tell = files, tell
        self._closed: dict[str, FileEvent] = {}

    def enter(self) -> None:
        """Report findings as the training function is entered, and watch for later writes."""
        self._files.stop()
        emptied, made = (
            {path: event for path, event in events.items() if not _is_of_first_start(event)}
            for events in (self._files.emptied, self._files.made)
        )
        self._files.emptied.clear()
        self._files.made.clear()
        opened = _opened_for_writing() if emptied else set()
        for path, event in emptied.items():
            if any(_is_of_process(name, event.unix_s) for name in path.split("/")):
                continue
            if os.path.realpath(path) in opened:
                self._tell(_of_file(event))
            else:
                self._closed[path] = event
        if self._closed:
            listen(self._note)
        numbered = [event for event in made.values() if _DIGIT.search(os.path.basename(event.path))]
        texts = "".join(map(_text_of, users_files())) + " ".join(sys.argv) if numbered else ""
        for event in numbered:
            if is_another_each_time(event, texts):
                self._tell(_of_folder(event))

    def close(self) -> None:
        """Stop watching."""
        stop_listening(self._note)

    def _note(self, verb: str, path: str) -> None:
        if verb in (EMPTIES, WRITES):
            event = self._closed.pop(os.path.abspath(path), None)
            if event is not None:
                self._tell(_of_file(event))


def is_another_each_time(event: FileEvent, texts: str) -> bool:
    """Return whether a folder's name has the time or the process in it, or was chosen as one that is not there yet.

    `texts`: text of the script, its modules and its arguments. A name that stands there is always the same.
    """
    name = os.path.basename(event.path)
    if not _DIGIT.search(name) or name in texts:
        return False
    return event.exclusive or _is_of_process(name, event.unix_s)


def _is_of_first_start(event: FileEvent) -> bool:
    """Return whether a condition with `restart_count` leads to the event."""
    return any(line in lines for file, line in event.frames if is_users(file) for lines in _conditional_lines(file))


@cache
def _conditional_lines(file: str) -> tuple[range, ...]:
    """Return the lines of each statement whose condition calls `taskd.restart_count()`."""
    text = _text_of(file)
    if _ASKS not in text:
        return ()
    with suppress(SyntaxError, ValueError, RecursionError):
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        return tuple(
            range(one.lineno, (one.end_lineno or one.lineno) + 1)
            for one in statements
            if any(_ASKS in ast.unparse(test) for test in _tests_of(one))
        )
    return ()


def _tests_of(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the condition of an `if`, and those in the expressions of other statements."""
    if isinstance(statement, ast.If):
        yield statement.test
        return
    heads: list[ast.AST] = [statement]
    if hasattr(statement, "body"):
        heads = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
    yield from (node.test for head in heads for node in ast.walk(head) if isinstance(node, ast.IfExp))


def _is_of_process(name: str, unix_s: float) -> bool:
    """Return whether a name was made from the process's number, or from the time."""
    numbers = re.findall(r"\d+", name)
    by_seconds = any(abs(int(one) - unix_s) < _DAY_S for one in numbers if len(one) == _DIGITS)
    return str(os.getpid()) in numbers or by_seconds or _has_time_of_day(name, unix_s)


def _has_time_of_day(name: str, unix_s: float) -> bool:
    """Return whether the name has that minute or the one before, and the day of the month."""
    for then in (unix_s, unix_s - 60):
        for at in (time.localtime(then), time.gmtime(then)):
            minute = rf"{at.tm_hour:02}\D?{at.tm_min:02}"
            if re.search(minute, name) and f"{at.tm_mday:02}" in re.sub(minute, " ", name, count=1):
                return True
    return False


def _opened_for_writing() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
                flags = int(file.read().partition("flags:")[2].split()[0], 8)
            if flags & (os.O_WRONLY | os.O_RDWR):
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def _text_of(file: str) -> str:
    with suppress(OSError), open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read(_MOST_BYTES)
    return ""


def _of_file(event: FileEvent) -> str:
    return (
        f"{innermost_line(event.frames)} empties {event.path} in the set-up, and the training writes to it: a new "
        "process of this rank empties it again. Open it with 'a' if taskd.restart_count() else 'w'."
    )


def _of_folder(event: FileEvent) -> str:
    return (
        f"{innermost_line(event.frames)} makes the folder {event.path} in the set-up, by a name that is another one "
        "each time: a new process of this rank goes on in another folder. Give the name on the command line."
    )
