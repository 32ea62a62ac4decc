"""The user's knowledge of the job's own exceptions: `taskd.register_fault`.

Rules:

1. The newest matching registration decides. Every registration comes before the built-in rules of the core.
2. A pattern is searched for in `Class: message`, the form in a fault's record. It may also be the whole name of a class
   that the exception derives from.
3. A registration belongs to the process. Scripts register before their resilient function, so a new process of the rank
   has the registration too. Registering again changes nothing.
"""

import re
from typing import Final

from taskd.core.diagnosis.faults import BUILT_IN, ErrorPattern, FaultKind, classify
from taskd.errors import ConfigError
from taskd.wire.text import line

_MOST_CHARS: Final = 1000
"""Longest exception message in a fault's record, in characters: room for two paths and the remedy."""
_KINDS: Final = tuple(kind.value for kind in FaultKind)
_registered: list[ErrorPattern] = []


def register_fault(pattern: str, kind: str) -> None:
    """Register the kind of fault that an exception inside a resilient function means.

    `pattern` is a regular expression that is searched for in the exception's text, `Class: message`. It may also be the
    name of the exception's class or of one of its base classes. `kind` is one of

    - `"retry"`: transient, the processes are healthy. The step is repeated. Without a registration, only the step of a
      `RuntimeError` is.
    - `"process"`: the process must be replaced.
    - `"node"`: the node must be replaced.
    - `"fatal"`: a bug of the job. There is no recovery from it.

    If several registrations match, the newest decides.

    Raises:
        ConfigError: the kind is none of the four, or the pattern is no regular expression or matches everything.
    """
    rule = ErrorPattern(_checked(pattern), _kind(kind))
    _registered[:] = [other for other in _registered if other.pattern != pattern] + [rule]


def kind_of(error: BaseException) -> FaultKind | None:
    """Return the registered kind of an exception, else the core's kind for its text, else None."""
    line = f"{type(error).__name__}: {error}"
    for rule in reversed(_registered):
        if re.search(rule.pattern, line) or any(re.fullmatch(rule.pattern, name) for name in _names(error)):
            return rule.kind
    return FaultKind.FATAL if isinstance(error, ConfigError) else classify(line, BUILT_IN)


def last_words(error: BaseException) -> tuple[str, str]:
    """Return the last report of a process that dies of this exception: it in one line, and its kind or ""."""
    kind = kind_of(error)
    return in_one_line(error), kind.value if kind is not None else ""


def in_one_line(error: BaseException) -> str:
    """Return an exception as a fault's record shows it: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {line(lines[0], _MOST_CHARS)}" if lines else type(error).__name__


def _names(error: BaseException) -> set[str]:
    """Return the names of the exception's class and of all its base classes, short and with their modules."""
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
