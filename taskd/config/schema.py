"""Description of a setting: its names, its format, its bounds.

Rules:

1. A setting has an environment variable, a key of the dict given to `init_taskd_manager`, or both; the key wins. Some
   settings can also be an annotation of the pod, which counts if neither is given.
2. A default is written as a user would write it. None means that the setting is required, or that `meaning` explains
   its absence.
3. Nothing here reads the environment or any file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from taskd.core.policy import Strategy


class Format(Enum):
    """Format of a setting's text. The value completes the sentence "expected …"."""

    TEXT = "text that is not empty"
    WHOLE = "a whole number"
    SECONDS = "a number of seconds"
    FACTOR = "a number"
    SWITCH = "on or off"
    INEXACT = "refuse or allow"
    COMMAND = "a command line"
    MODULES = "names of modules, separated by commas"
    STRATEGIES = "some of " + ", ".join(strategy.value for strategy in Strategy) + ", separated by commas"
    SELF_CHECK = "auto, always or off"
    PATH = "an absolute path"
    ADDRESS = "host:port, [IPv6]:port, or the word embedded"


class Reader(Enum):
    """Reader of a setting. The value is the heading of its table in the documentation."""

    MANAGER = "Manager"
    AGENT = "Agent (the torchrun process)"
    SHIM = "Shim (libtaskd.so)"
    WORKER = "Set by the agent for the processes of its node"


@dataclass(frozen=True)
class Setting:
    """One setting. `minimum` and `maximum` bound numbers, both included."""

    variable: str | None
    key: str | None
    format: Format
    default: str | None
    readers: tuple[Reader, ...]
    meaning: str
    minimum: float = 0
    maximum: float = 86_400
    annotation: str | None = None

    @property
    def name(self) -> str:
        """Name for messages: the variable, else the key."""
        return self.variable or f"{self.key!r} of init_taskd_manager"

    @property
    def all_names(self) -> str:
        """All names under which a user can give the setting, except for an annotation."""
        key = [] if self.key is None else [f"{self.key!r} of init_taskd_manager"]
        return " or ".join([*key, *([] if self.variable is None else [self.variable])])

    @property
    def expected(self) -> str:
        """Description of the allowed values, for error messages."""
        if self.format in (Format.WHOLE, Format.SECONDS, Format.FACTOR):
            return f"{self.format.value} from {self.minimum:g} to {self.maximum:.0f}"
        return str(self.format.value)


@dataclass(frozen=True)
class UnknownName:
    """A name that no setting has, and the nearest existing name (None if no name is near)."""

    found: str
    nearest: str | None

    @property
    def advice(self) -> str:
        """The name, with the setting that was probably meant."""
        return self.found if self.nearest is None else f"{self.found} (did you mean {self.nearest}?)"


def unknown_names(found: Iterable[str], known: Iterable[str]) -> tuple[UnknownName, ...]:
    """Return the names in `found` that are not in `known`, sorted, each with its nearest match."""
    from difflib import get_close_matches

    names = tuple(known)
    unknown = sorted(set(found) - set(names))
    return tuple(UnknownName(name, next(iter(get_close_matches(name, names, n=1)), None)) for name in unknown)
