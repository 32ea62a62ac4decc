"""What the user knows of the job's own exceptions: `taskd.register_fault`.

Rules:

1. The newest registration that matches decides, and any of them comes before the built-in rules of the core.
2. A pattern is searched for in `Class: message`, as the record of a fault shows it; or it is the whole name of a class
   that the exception derives from.
3. A registration belongs to the process. Scripts register before their resilient function, so a new process of the rank
   has it too; doing it again changes nothing.
"""

import re
from typing import Final

from taskd.core.diagnosis.faults import BUILT_IN, ErrorPattern, FaultKind, classify
from taskd.errors import ConfigError
from taskd.wire.text import line

_MOST_CHARS: Final = 1000
"""An exception's message in a fault's record: room for two paths and what to do."""
_KINDS: Final = tuple(kind.value for kind in FaultKind)
_registered: list[ErrorPattern] = []


def register_fault(pattern: str, kind: str) -> None:
    """Say what an exception means that is raised inside a resilient function.

    `pattern` is a regular expression that is searched for in the exception's text, `Class: message`; or the name of its
    class or of one that this derives from. `kind` is one of

    - `"retry"`: transient, the processes are well. The step is done again; without this, only a `RuntimeError` is.
    - `"process"`: the process must be replaced.
    - `"node"`: the node must be replaced.
    - `"fatal"`: a bug of the job. It is not recovered from.

    Of several registrations that match, the newest decides.

    Raises:
        ConfigError: the kind is none of the four, or the pattern is no regular expression or matches everything.

    """
    rule = ErrorPattern(_checked(pattern), _kind(kind))
    _registered[:] = [other for other in _registered if other.pattern != pattern] + [rule]


def kind_of(error: BaseException) -> FaultKind | None:
    """What an exception means: what was registered, else what the core knows of its text, else None."""
    line = f"{type(error).__name__}: {error}"
    for rule in reversed(_registered):
        if re.search(rule.pattern, line) or any(re.fullmatch(rule.pattern, name) for name in _names(error)):
            return rule.kind
    return FaultKind.FATAL if isinstance(error, ConfigError) else classify(line, BUILT_IN)


def last_words(error: BaseException) -> tuple[str, str]:
    """What a process says that dies of this: the exception in one line, and the word for its kind, if it has one."""
    kind = kind_of(error)
    return in_one_line(error), kind.value if kind is not None else ""


def in_one_line(error: BaseException) -> str:
    """An exception as the record of a fault shows it: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {line(lines[0], _MOST_CHARS)}" if lines else type(error).__name__


def _names(error: BaseException) -> set[str]:
    """The names of the exception's class and of all that it derives from, short and with their modules."""
    classes = [cls for cls in type(error).__mro__ if issubclass(cls, BaseException)]
    return {cls.__name__ for cls in classes} | {f"{cls.__module__}.{cls.__qualname__}" for cls in classes}


def _checked(pattern: object) -> str:
    try:
        matches_everything = not isinstance(pattern, str) or re.search(pattern, "") is not None
    except re.error as error:
        raise ConfigError(
            f"taskd.register_fault: found the pattern {pattern!r} ({error}), expected a regular expression; correct "
            "it, or use re.escape for plain text"
        ) from error
    if not isinstance(pattern, str) or matches_everything:
        raise ConfigError(
            f"taskd.register_fault: found the pattern {pattern!r}, expected a text that not every exception matches; "
            "give the name of a class or a part of the message"
        )
    return pattern


def _kind(word: object) -> FaultKind:
    if word not in _KINDS:
        raise ConfigError(
            f"taskd.register_fault: found the kind {word!r}, expected one of {', '.join(_KINDS)}; correct it"
        )
    return FaultKind(word)
