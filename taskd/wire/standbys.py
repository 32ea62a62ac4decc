"""Messages between an agent and its warm processes."""

from typing import Annotated

import msgspec

from taskd.wire.bounds import Amount, Many, Raw
from taskd.wire.probes import ProbeOrder, ProbeResult


class Become(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: take a rank. `env` replaces the environment, `argv` is `[b"script.py", …]` or `[b"-m", …]`."""

    env: Annotated[dict[Raw, Raw], Many]
    argv: Annotated[tuple[Raw, ...], Many]
    cwd: Raw | None = None  # None: the directory is gone, and the process stays in the one where it was forked
    stdout: Raw | None = None
    stderr: Raw | None = None


class RunCheck(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: check this node (`adaptors.nodecheck`), send the results, and end."""

    order: ProbeOrder


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Standby to agent: the results of a check."""

    result: ProbeResult


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to template: fork `count` more standbys."""

    count: Amount


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: prepare the memory that a rank will use. Until then all memory is shared."""
