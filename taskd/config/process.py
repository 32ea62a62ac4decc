"""The environment of this very process: what children inherit, and another one for a standby that becomes a rank."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from taskd.config.schema import Reader, Setting
from taskd.config.settings import DESCRIPTORS, ENABLED, PRELOAD_KEEP, SETTINGS, SIGCHLD_IGNORED, WRAPPED

RANK_VARIABLES: Final = frozenset(
    ("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT")
)
"""torchrun's variables that tell one rank from another."""
_PATH: Final = "PYTHONPATH"
_PRELOAD: Final = "LD_PRELOAD"
_GATE: Final = "libtaskd.so"
_NCCL_PLUGIN: Final = "NCCL_PROFILER_PLUGIN"
_NCCL_PATH_CHARACTERS: Final = 254
_NCCL_ERRORS: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_TORN_DOWN, _LEFT_ALONE = "1", "0"
"""What torchrun sets for its workers where the user has set nothing, and what torch calls no handling."""
_withheld: dict[str, str] = {}
_set_here: set[str] = set()
"""Variables that `profile_nccl` has set, and not the user."""


def ask_for(setting: Setting) -> None:
    """Switch a setting on for this process and its children, as its option of torchrun's command line does."""
    assert setting.variable is not None
    os.environ[setting.variable] = "on"


def enable() -> None:
    """Switch taskd on for this process and its children."""
    ask_for(ENABLED)


def environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def withhold(setting: Setting) -> None:
    """Keep a variable for this process alone: what it starts from now on does not inherit it."""
    assert setting.variable is not None
    value = os.environ.pop(setting.variable, None)
    if value is not None:
        _withheld[setting.variable] = value


def hand_down(setting: Setting, value: int) -> None:
    """Give a number to the processes that this one starts from now on; each takes it with `take_over`."""
    assert setting.variable is not None
    os.environ[setting.variable] = str(value)


def take_over(setting: Setting) -> int | None:
    """Take a number out of this process's environment: what it starts does not inherit it. None if there is none."""
    assert setting.variable is not None
    text = os.environ.pop(setting.variable, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def take_over_numbers(setting: Setting) -> tuple[int, ...]:
    """Take numbers, separated by commas, out of this process's environment."""
    assert setting.variable is not None
    text = os.environ.pop(setting.variable, "")
    return tuple(int(part) for part in text.split(",") if part.isascii() and part.isdecimal())


def own_environment() -> dict[str, str]:
    """What this process was started with, or has been given since, with what is withheld from its children."""
    return {**_withheld, **os.environ}


def restart_count() -> int:
    """Return the restarts and recoveries before this process was started; 0 in a rank's first process.

    Use it for what a job does once, since a new process of a rank runs the whole script again::

        log = open("log.txt", "a" if taskd.restart_count() else "w")

    It is torchrun's `TORCHELASTIC_RESTART_COUNT`, for the whole job. Without taskd, torchrun counts its own restarts.
    """
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def replace_environment(env: Mapping[bytes, bytes]) -> None:
    """Give this process exactly `env`, for Python and for C."""
    os.environb.clear()
    os.environb.update(env)


def starting_with(directory: str, env: Mapping[str, str]) -> dict[str, str]:
    """`PYTHONPATH` that begins with a directory, once, and keeps what `env` has there, empty entries too."""
    others = _without(directory, env.get(_PATH, ""))
    return {_PATH: f"{directory}{os.pathsep}{others}" if others else directory}


def forget_start(directory: str) -> None:
    """Take that directory out of this process's environment again."""
    rest = _without(directory, os.environ.get(_PATH, ""))
    if rest:
        os.environ[_PATH] = rest
    else:
        os.environ.pop(_PATH, None)


def wrapped_by(interpreter: str) -> dict[str, str]:
    """Variable for the processes of a wrapper: those of this interpreter (`own_interpreter`) may be the rank."""
    return {WRAPPED.name: interpreter}


def unwrapped(env: Mapping[str, str]) -> dict[str, str]:
    """Variable for ranks that no wrapper starts, where their torchrun runs under one of another torchrun."""
    return {WRAPPED.name: ""} if env.get(WRAPPED.name) else {}


def forget_wrapper() -> None:
    """Take the wrapper's variable out of this process's environment: what it starts is nobody's rank."""
    os.environ.pop(WRAPPED.name, None)


def is_wrapped() -> bool:
    """Whether a wrapper that torchrun has started may have started this process."""
    return bool(os.environ.get(WRAPPED.name))


def own_interpreter() -> str:
    """A name of this interpreter and of what is installed for it. `python/start/sitecustomize.py` compares it."""
    return f"{sys.implementation.cache_tag}:{sys.prefix}"


def _without(directory: str, path: str) -> str:
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if entry != directory)


def preload_with(gate: Path) -> dict[str, str]:
    """`LD_PRELOAD` that begins with the shim's gate, once, and keeps whatever else is there."""
    return {_PRELOAD: ":".join([str(gate), *_preloaded_without(gate.name)])}


def forget_preload() -> None:
    """Take the shim's gate out of `LD_PRELOAD`, as it does itself in a cold rank, unless it is to stay."""
    if os.environ.get(PRELOAD_KEEP.name) == "on":
        return
    rest = ":".join(_preloaded_without(_GATE))
    if rest:
        os.environ[_PRELOAD] = rest
    else:
        os.environ.pop(_PRELOAD, None)


def _preloaded_without(gate: str) -> list[str]:
    entries = re.split("[: ]", os.environ.get(_PRELOAD, ""))
    return [entry for entry in entries if entry and Path(entry).name != gate]


def profile_nccl(plugin: Path) -> str:
    """Have NCCL load `plugin` as its profiler in the processes that this one starts. Returns why it will not, or ""."""
    if _NCCL_PLUGIN not in os.environ:
        _set_here.add(_NCCL_PLUGIN)
    chosen = os.environ.setdefault(_NCCL_PLUGIN, str(plugin))
    if chosen != str(plugin):
        return f"{_NCCL_PLUGIN} is set to {chosen}, and NCCL loads one profiler only; unset it to have them"
    if len(chosen) > _NCCL_PATH_CHARACTERS:
        del os.environ[_NCCL_PLUGIN]
        return f"NCCL cuts the path {plugin} after {_NCCL_PATH_CHARACTERS} characters; install taskd in a shorter one"
    return ""


def profile_nccl_no_more() -> None:
    """Undo `profile_nccl`, for the processes that this one starts from now on. What the user has set stays."""
    if _NCCL_PLUGIN in _set_here:
        _set_here.discard(_NCCL_PLUGIN)
        os.environ.pop(_NCCL_PLUGIN, None)


def leave_alone_at_nccl_errors() -> None:
    """This process goes on when a group of NCCL that is made from now on loses a peer. What a user has set stays."""
    if os.environ.get(_NCCL_ERRORS, _TORN_DOWN) == _TORN_DOWN:
        os.environ[_NCCL_ERRORS] = _LEFT_ALONE


def without_rank(env: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment less what belongs to one rank or one process of it."""
    own = {setting.variable for setting in SETTINGS if Reader.WORKER in setting.readers} | RANK_VARIABLES
    own -= {DESCRIPTORS.variable, SIGCHLD_IGNORED.variable}
    return {name: value for name, value in env.items() if name not in own}
