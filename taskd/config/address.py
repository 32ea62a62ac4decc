"""The manager's address, and how an agent finds it.

Rules:

1. `TASKD_MANAGER` wins. Without it the manager is on the host of MASTER_ADDR, where the seed's scripts start it.
2. In a job of one node the host of MASTER_ADDR is this machine, whatever its name. 127.0.0.1 is used instead, because
   a manager without a secret listens nowhere else. Launch scripts also set MASTER_ADDR where nobody starts a manager.
   Then the agent embeds one (`core/membership/nearby.py`).
3. With nothing configured, the agent of a job of one node embeds the manager. A job of several nodes cannot do this.
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
        """The address in ZeroMQ's form."""
        return f"tcp://{self}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_numeric(self) -> bool:
        """True if the host needs no resolver: an IPv4 address, or an IPv6 one, perhaps with a zone."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        zone = self.host.partition("%")[2]  # ZeroMQ takes any text after a ";" for another host
        return all(char.isascii() and (char.isalnum() or char in "-._") for char in zone)


def parse_address(text: str) -> Address | None:
    """Parse `host:port` or `[IPv6]:port`. Return None for any other text."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not is_host(host) or (":" in host) != bracketed:
        return None
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(_MAX_PORT)) and 0 < int(port) <= _MAX_PORT):
        return None
    return Address(host, int(port))


def is_host(text: str) -> bool:
    """Return whether a text can be a host: a name, an IPv4 or an IPv6 address (without brackets)."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return bool(text) and text.isascii() and all(char.isalnum() or char in "-._" for char in text)


def manager_address(env: Mapping[str, str], master_addr: str | None, node_count: int = 1) -> Address | None:
    """Return the address at which an agent reaches the manager; None means that the agent embeds one.

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
    """Return whether a variable or `--master-addr` gives the address of a manager of several nodes."""
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
