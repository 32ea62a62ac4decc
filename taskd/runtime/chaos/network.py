"""Cuts and brakes of this node's network, each as steps: a command, and the one that undoes it.

Rules:

1. Only changes made here are undone: an interface on which another program shapes traffic is refused.
2. A silent cut sends all packets, coming and going, into a device that leads nowhere. Addresses, routes and the link
   stay, and nobody is notified, as behind a switch that has failed. `down` is the pulled cable: the kernel forgets the
   interface's routes. So they are recorded before and restored after.
3. The change happens in this process's network, which must be the job's.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from taskd.errors import ChaosError
from taskd.runtime.chaos.tools import find_tool, run_tool
from taskd.runtime.system.processes import read

_CAP_NET_ADMIN: Final = 12
_LEAST_BURST_BYTES: Final = 65_536
_BURST_S: Final = 0.004
_QUEUE_MS: Final = 200
_SOCKETS: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
_NOT_WORTH_KEEPING: Final = ("kernel", "ra")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkCommand:
    """A command and the ones that undo it; none if an earlier step's undo covers it."""

    do: Words
    undo: tuple[Words, ...] = ()


def why_not(agent: int) -> str:
    """Return why no link of this job can be changed from here; "" if it can."""
    missing = [name for name in ("ip", "tc") if find_tool(name) is None]
    if missing:
        return f"found no command {' and '.join(missing)}, expected it: install the package iproute2"
    if not _can_administer():
        return "this process may not change the network: run it as root, in a container with the capability NET_ADMIN"
    try:
        if os.readlink(f"/proc/{agent}/ns/net") != os.readlink("/proc/self/ns/net"):
            return "the job is in another network namespace: run taskd chaos inside its container"
    except OSError as error:
        return f"the job's network cannot be seen ({error.strerror}): run it as the user of the job"
    return ""


def _can_administer() -> bool:
    for line in (read("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return False


def choose_interface(given: str | None, env: dict[str, str]) -> str:
    """Return the interface to use. Raises `ChaosError` if it is not there, or none was named and there are several."""
    up = {str(link["ifname"]): link for link in _json("ip", "-j", "link", "show", "up")}
    if given is not None:
        if given not in up:
            raise ChaosError(f"found no interface {given} that is up, expected one of {', '.join(up)}")
        return given
    named = next((env[name] for name in _SOCKETS if env.get(name) in up), None)
    if named is not None:
        return named
    outward = [name for name in up if name != "lo"]
    if len(outward) != 1:
        raise ChaosError(f"found {len(outward)} interfaces ({', '.join(outward)}), expected one: give --interface")
    return outward[0]


def risk(interface: str) -> str:
    """Return a warning about other uses of an interface; "" if none is known."""
    if interface == "lo":
        return "all that is on this machine talks over lo"
    routes = _json("ip", "-j", "route", "show", "default") + _json("ip", "-j", "-6", "route", "show", "default")
    if any(route.get("dev") == interface for route in routes):
        return f"{interface} carries the default route: this node may not be reached until it is undone"
    return ""


def addresses(host: str) -> list[str]:
    """Return the addresses of a peer, given by name or address. Raises `ChaosError` if it has none."""
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        raise ChaosError(f"found no address of {host!r} ({error}), expected a host's name or address") from error


def silent_cut(interface: str, peers: Iterable[str]) -> list[NetworkCommand]:
    """Return steps that lose all packets of an interface, or those from and to some addresses.

    Raises `ChaosError` if another program filters its traffic.
    """
    if any(one["kind"] in ("clsact", "ingress") for one in _qdiscs(interface)):
        raise ChaosError(f"another program filters the traffic of {interface} already; try --down")
    filters = ("dev", interface, "clsact")
    hole, end = f"hole{os.getpid()}", f"wall{os.getpid()}"  # a device that is up, and whose other end never is
    steps = [
        NetworkCommand(
            ("ip", "link", "add", hole, "type", "veth", "peer", "name", end), (("ip", "link", "delete", hole),)
        ),
        NetworkCommand(("ip", "link", "set", hole, "up")),
        NetworkCommand(("tc", "qdisc", "add", *filters), (("tc", "qdisc", "delete", *filters),)),
    ]
    sink = ("action", "mirred", "egress", "redirect", "dev", hole)
    for priority, match in enumerate(_matches(peers), 1):
        for way, selector in (("egress", match.to), ("ingress", match.of)):
            filtered = ("tc", "filter", "add", "dev", interface, way, "protocol", match.protocol)
            steps.append(NetworkCommand((*filtered, "prio", str(priority), "u32", "match", *selector, *sink)))
    return steps


@dataclass(frozen=True, slots=True)
class _Match:
    protocol: str
    to: Words
    of: Words


def _matches(peers: Iterable[str]) -> list[_Match]:
    found = []
    for peer in peers:
        version = ipaddress.ip_address(peer.partition("%")[0])
        words = ("ip", f"{version}/32") if version.version == 4 else ("ip6", f"{version}/128")
        protocol = "ip" if version.version == 4 else "ipv6"
        found.append(_Match(protocol, (words[0], "dst", words[1]), (words[0], "src", words[1])))
    everything = ("u32", "0", "0")
    return found or [_Match("all", everything, everything)]


def down(interface: str) -> list[NetworkCommand]:
    """Return the step that takes an interface down; its undo also restores what the kernel forgets."""
    again: list[Words] = [("ip", "link", "set", interface, "up")]
    for one in _json("ip", "-j", "-6", "address", "show", "dev", interface, "scope", "global"):
        infos = [info for info in one.get("addr_info", []) if info]  # an address of another scope is an empty entry
        again += [_address(interface, info) for info in infos if not info.get("dynamic")]
    for family in ("-4", "-6"):
        lines = run_tool(("ip", family, "route", "show", "dev", interface)).splitlines()
        routes = (line.replace("linkdown", "").split() for line in lines)
        kept = sorted(filter(_kept, routes), key=lambda words: "via" in words)  # a gateway must be reached first
        again += [("ip", family, "route", "replace", *words, "dev", interface) for words in kept]
    return [NetworkCommand(("ip", "link", "set", interface, "down"), tuple(again))]


def _address(interface: str, info: dict[str, Any]) -> Words:
    return ("ip", "-6", "address", "replace", f"{info['local']}/{info['prefixlen']}", "dev", interface, "nodad")


def _kept(words: Sequence[str]) -> bool:
    """Return whether a route must be restored: the kernel, or the router's next advertisement, restores the others."""
    return not any(word == "proto" and value in _NOT_WORTH_KEEPING for word, value in pairwise(words))


def brake(interface: str, mbit: float) -> list[NetworkCommand]:
    """Return the step that limits an interface's sending rate, in Mbit/s.

    Raises `ChaosError` if another program shapes its traffic.
    """
    own = [one for one in _qdiscs(interface) if one.get("root") and one.get("handle") != "0:"]
    if own:
        raise ChaosError(
            f"another program shapes the traffic of {interface} already ({own[0]['kind']}); end that first"
        )
    burst = max(_LEAST_BURST_BYTES, int(mbit * 1e6 / 8 * _BURST_S))
    shape = ("tbf", "rate", f"{mbit:g}mbit", "burst", str(burst), "latency", f"{_QUEUE_MS}ms")
    root = ("tc", "qdisc")
    where = ("dev", interface, "root")
    return [NetworkCommand((*root, "add", *where, *shape), ((*root, "delete", *where),))]


def _qdiscs(interface: str) -> list[dict[str, Any]]:
    return _json("tc", "-j", "qdisc", "show", "dev", interface)


def _json(*words: str) -> list[dict[str, Any]]:
    found = json.loads(run_tool(words) or "[]")
    return [one for one in found if one] if isinstance(found, list) else []
