"""Binding of the manager's port, with the reason in the user's words if it fails."""

import errno
import ipaddress
import socket
from typing import Final

import zmq

from taskd.config.address import ALL_INTERFACES, Address, parse_address
from taskd.errors import LinkError
from taskd.runtime.links.portowner import listener_of

_REMEDIES: Final = {
    errno.EADDRNOTAVAIL: "this machine has no such address: give one of its own, or leave the host out",
    errno.EACCES: "this user may not: choose a port above 1023",
}


def bind(zmq_socket: "zmq.Socket[bytes]", listen: Address) -> Address:
    """Bind and return the address in use, with the true port if 0 was requested.

    Raises `LinkError`: a name that does not resolve, a port in use (by whom), an address of another machine.
    """
    numeric = Address(_numeric(listen), listen.port)
    zmq_socket.setsockopt(zmq.IPV6, 1 if numeric.host == ALL_INTERFACES or ":" in numeric.host else 0)
    try:
        zmq_socket.bind(numeric.endpoint if listen.port else f"{numeric.endpoint.rpartition(':')[0]}:*")
    except zmq.ZMQError as error:
        raise LinkError(f"cannot listen on {listen}: {_why(error, listen.port)}") from error
    bound = parse_address(zmq_socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://"))
    assert bound is not None, "ZeroMQ names a bound endpoint by address and port"
    return Address(numeric.host, bound.port)


def _numeric(listen: Address) -> str:
    """Return the host as an address: ZeroMQ resolves no names when it binds."""
    if listen.host == ALL_INTERFACES:
        return listen.host
    try:
        return str(ipaddress.ip_address(listen.host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(listen.host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(
            f"cannot listen on {listen}: the name does not resolve ({error.strerror}); give an address of this machine"
        ) from error
    return str(min(found, key=lambda entry: entry[0])[4][0])  # IPv4 before IPv6, as agents try them


def _why(error: zmq.ZMQError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"the port is in use by {listener_of(port)}; end that process if it is an old manager, or choose another "
            "port with TASKD_MANAGER_PORT on all nodes"
        )
    return _REMEDIES.get(error.errno or 0, str(error.strerror))
