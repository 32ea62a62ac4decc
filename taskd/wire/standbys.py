"""What an agent and its warm processes say to one another."""

from typing import Annotated

import msgspec

from taskd.wire.bounds import Amount, Many, Raw
from taskd.wire.probes import ProbeOrder, ProbeResult


class Become(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: take a rank. `env` replaces the environment, `argv` is `[b"script.py", …]` or `[b"-m", …]`."""

    env: Annotated[dict[Raw, Raw], Many]
    argv: Annotated[tuple[Raw, ...], Many]
    cwd: Raw | None = None  # None: it is gone, and the process stays in the one that it was forked in
    stdout: Raw | None = None
    stderr: Raw | None = None


class RunCheck(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: check this node (`adaptors.nodecheck`), say what was found, and end."""

    order: ProbeOrder


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Standby to agent: what it has found."""

    result: ProbeResult


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to template: make `count` more standbys."""

    count: Amount


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to standby: have the memory ready that a rank will use. Until then all of it is shared."""
