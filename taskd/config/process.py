"""The environment of this process: the part that children inherit, and a new one for a standby that becomes a rank."""

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
"""torchrun's variables that distinguish one rank from another."""
_PATH: Final = "PYTHONPATH"
_PRELOAD: Final = "LD_PRELOAD"
_GATE: Final = "libtaskd.so"
_NCCL_PLUGIN: Final = "NCCL_PROFILER_PLUGIN"
_NCCL_PATH_CHARACTERS: Final = 254
_NCCL_ERRORS: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_TORN_DOWN, _LEFT_ALONE = "1", "0"
"""Default that torchrun sets for its workers, and torch's value for no handling."""
_withheld: dict[str, str] = {}
_set_here: set[str] = set()
"""Variables that `profile_nccl` has set, not the user."""


def ask_for(setting: Setting) -> None:
    """Switch a setting on for this process and its children, as requested by an option of torchrun's command line."""
    assert setting.variable is not None
    os.environ[setting.variable] = "on"


def enable() -> None:
    """Switch taskd on for this process and its children."""
    ask_for(ENABLED)


def environment() -> dict[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


def withhold(setting: Setting) -> None:
    """Keep a variable for this process alone: processes that it starts from now on do not inherit it."""
    assert setting.variable is not None
    value = os.environ.pop(setting.variable, None)
    if value is not None:
        _withheld[setting.variable] = value


def hand_down(setting: Setting, value: int) -> None:
    """Give a number to the processes that this one starts from now on; each takes it with `take_over`."""
    assert setting.variable is not None
    os.environ[setting.variable] = str(value)


def take_over(setting: Setting) -> int | None:
    """Take a number out of this process's environment, so its children do not inherit it. None if there is none."""
    assert setting.variable is not None
    text = os.environ.pop(setting.variable, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def take_over_numbers(setting: Setting) -> tuple[int, ...]:
    """Take numbers, separated by commas, out of this process's environment."""
    assert setting.variable is not None
    text = os.environ.pop(setting.variable, "")
    return tuple(int(part) for part in text.split(",") if part.isascii() and part.isdecimal())


def own_environment() -> dict[str, str]:
    """Return this process's environment, including the variables withheld from its children."""
    return {**_withheld, **os.environ}


def restart_count() -> int:
    """Return the number of restarts and recoveries before this process was started; 0 in a rank's first process.

    Use it for work that a job does only once, because a new process of a rank runs the whole script again::

        log = open("log.txt", "a" if taskd.restart_count() else "w")

    It is torchrun's `TORCHELASTIC_RESTART_COUNT`, for the whole job. Without taskd, torchrun counts its own restarts.
    """
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def replace_environment(env: Mapping[bytes, bytes]) -> None:
    """Replace this process's whole environment by `env`, for Python and for C."""
    os.environb.clear()
    os.environb.update(env)


def starting_with(directory: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return `PYTHONPATH` with `directory` in front, once. Other entries of `env` stay, also empty ones."""
    others = _without(directory, env.get(_PATH, ""))
    return {_PATH: f"{directory}{os.pathsep}{others}" if others else directory}


def forget_start(directory: str) -> None:
    """Remove the directory from this process's `PYTHONPATH`: the inverse of `starting_with`."""
    rest = _without(directory, os.environ.get(_PATH, ""))
    if rest:
        os.environ[_PATH] = rest
    else:
        os.environ.pop(_PATH, None)


def wrapped_by(interpreter: str) -> dict[str, str]:
    """Return the variable for processes that a wrapper starts.

    Only a process of this interpreter (`own_interpreter`) may be the rank.
    """
    return {WRAPPED.name: interpreter}


def unwrapped(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for ranks that no wrapper starts: it hides a wrapper of an outer torchrun."""
    return {WRAPPED.name: ""} if env.get(WRAPPED.name) else {}


def forget_wrapper() -> None:
    """Remove the wrapper's variable from this process's environment: its children are not ranks."""
    os.environ.pop(WRAPPED.name, None)


def is_wrapped() -> bool:
    """Return whether a wrapper of torchrun may have started this process."""
    return bool(os.environ.get(WRAPPED.name))


def own_interpreter() -> str:
    """Return a name for this interpreter and its installation. `python/start/sitecustomize.py` compares it."""
    return f"{sys.implementation.cache_tag}:{sys.prefix}"


def _without(directory: str, path: str) -> str:
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if entry != directory)


def preload_with(gate: Path) -> dict[str, str]:
    """Return `LD_PRELOAD` with the shim's gate in front, once. All other entries stay."""
    return {_PRELOAD: ":".join([str(gate), *_preloaded_without(gate.name)])}


def forget_preload() -> None:
    """Remove the shim's gate from `LD_PRELOAD`, unless `TASKD_PRELOAD_KEEP` is on.

    In a cold rank the gate removes itself.
    """
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
    """Set `plugin` as NCCL's profiler in the processes that this one starts. Return why NCCL cannot load it, or ""."""
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
    """Undo `profile_nccl`, for the processes that this one starts from now on. A value of the user stays."""
    if _NCCL_PLUGIN in _set_here:
        _set_here.discard(_NCCL_PLUGIN)
        os.environ.pop(_NCCL_PLUGIN, None)


def leave_alone_at_nccl_errors() -> None:
    """Keep this process alive when an NCCL group that is made from now on loses a peer.

    It replaces torchrun's default only. Any other value of the user stays.
    """
    if os.environ.get(_NCCL_ERRORS, _TORN_DOWN) == _TORN_DOWN:
        os.environ[_NCCL_ERRORS] = _LEFT_ALONE


def without_rank(env: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment without the variables of one rank or of one process of a rank."""
    own = {setting.variable for setting in SETTINGS if Reader.WORKER in setting.readers} | RANK_VARIABLES
    own -= {DESCRIPTORS.variable, SIGCHLD_IGNORED.variable}
    return {name: value for name, value in env.items() if name not in own}
