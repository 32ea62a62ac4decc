"""Where the manager is: an address, and how an agent finds it.

Rules:

1. `TASKD_MANAGER` wins. Without it the manager is where the seed's scripts start it: on the host of MASTER_ADDR.
2. On a job of one node the host of MASTER_ADDR is this machine, whatever it is called; 127.0.0.1 is used instead,
   because a manager without a secret listens nowhere else. Launch scripts set MASTER_ADDR also where nobody starts a
   manager: then the agent embeds one (`core/membership/nearby.py`).
3. With nothing configured, a job of one node has its manager embedded in the agent; a job of several nodes cannot.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from taskd.config import settings
from taskd.config.reading import Source
from taskd.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
ALL_INTERFACES: Final = "*"
_MAX_PORT: Final = 65_535


@dataclass(frozen=True)
class Address:
    """A host and a TCP port. `host` is a name, an IPv4 or IPv6 address without brackets, or `*` to listen on all."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ writes it."""
        return f"tcp://{self}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_numeric(self) -> bool:
        """Whether no resolver is asked for it: an IPv4 address, or an IPv6 one, perhaps with a zone."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        zone = self.host.partition("%")[2]  # ZeroMQ takes what follows a ";" for another host
        return all(char.isascii() and (char.isalnum() or char in "-._") for char in zone)


def parse_address(text: str) -> Address | None:
    """`host:port` or `[IPv6]:port`; None for anything else."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not is_host(host) or (":" in host) != bracketed:
        return None
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(_MAX_PORT)) and 0 < int(port) <= _MAX_PORT):
        return None
    return Address(host, int(port))


def is_host(text: str) -> bool:
    """Whether a text can be a host: a name, an IPv4 or an IPv6 address (without brackets)."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return bool(text) and text.isascii() and all(char.isalnum() or char in "-._" for char in text)


def manager_address(env: Mapping[str, str], master_addr: str | None, node_count: int = 1) -> Address | None:
    """The address of the manager as an agent must use it; None means that the agent embeds one.

    `master_addr` is the value of torchrun's `--master-addr`, None if the user did not give it. Raises `ConfigError`.
    """
    source = Source(env)
    given = source.text(settings.MANAGER)
    if given is not None and given != settings.EMBEDDED:
        address = parse_address(given)
        if address is None:
            raise source.refuse(settings.MANAGER, given)
        return address
    named = None if given == settings.EMBEDDED else _master_text(env, master_addr)
    if node_count == 1:
        return None if named is None else Address(LOOPBACK, _client_port(source))
    host = _checked(named)
    if host is None:
        raise ConfigError(
            f"{settings.MANAGER.name}: found {given or 'nothing'}, expected host:port, because {node_count} nodes "
            "share one manager; set TASKD_MANAGER or MASTER_ADDR to where the manager runs"
        )
    return Address(host, _client_port(source))


def knows_manager(env: Mapping[str, str], master_addr: str | None) -> bool:
    """Whether anything says where the manager of several nodes is."""
    given = Source(env).text(settings.MANAGER)
    return given not in (None, settings.EMBEDDED) or (
        given is None and _checked(_master_text(env, master_addr)) is not None
    )


def _master_text(env: Mapping[str, str], master_addr: str | None) -> str | None:
    return (env.get("MASTER_ADDR") or master_addr or "").strip() or None


def _checked(named: str | None) -> str | None:
    if named is None:
        return None
    host = named.removeprefix("[").removesuffix("]")
    if not is_host(host):
        raise ConfigError(
            f"MASTER_ADDR (or --master-addr): found {host!r}, expected a host name or an address; correct it, or set "
            "TASKD_MANAGER to the manager's host:port"
        )
    return host


def _client_port(source: Source) -> int:
    port = source.whole(settings.PORT)
    if port == 0:
        raise source.refuse(settings.PORT, port, "a port from 1 to 65535 on the side of an agent")
    return port
