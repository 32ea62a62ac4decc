"""An operator's requests to a running job, over the same link as the agents'."""

import time
import uuid

from taskd.config.address import Address
from taskd.config.security import Security
from taskd.errors import LinkError, RecoveryError
from taskd.runtime.links.links import AgentSocket
from taskd.wire.checks import Inspect, Inspection
from taskd.wire.messages import Answer, Drain

_AGAIN_S = 0.2


def drain(address: Address, security: Security, node: str, timeout_s: float, job_id: str = "default") -> str:
    """Have the ranks of a node moved to one that waits for a place. Returns the manager's answer.

    `node` is the number of a place or the name of a node.

    Raises:
        SecretError: the address needs a secret.
        LinkError: no manager answers there in time.
        RecoveryError: the manager refuses; the text gives the reason.
    """
    until_s = time.monotonic() + timeout_s
    asked = False
    with AgentSocket(address, security) as link:
        while time.monotonic() < until_s:
            link.poll(0.1)
            for message in link.receive():
                if isinstance(message, Answer):
                    if not message.granted:
                        raise RecoveryError(f"node {node} is not drained: {message.text}")
                    return message.text
            if link.connected and not asked:
                asked = link.send(Drain(job_id=job_id, node=node))
        raise _silence(address, timeout_s, link)


def inspect(address: Address, security: Security, timeout_s: float, job_id: str = "default") -> str:
    """Have all nodes of a job checked. Returns the findings, as a JSON text.

    Raises:
        SecretError: the address needs a secret.
        LinkError: no manager answers there in time, or the check has not ended.
        RecoveryError: the manager refuses; the text gives the reason.
    """
    until_s, key, begun = time.monotonic() + timeout_s, uuid.uuid4().hex, False
    with AgentSocket(address, security) as link:
        while time.monotonic() < until_s:
            link.poll(_AGAIN_S)
            for message in link.receive():
                if not isinstance(message, Inspection) or message.key != key:
                    continue
                if message.refusal:
                    raise RecoveryError(message.refusal)
                if message.document:
                    return message.document
                begun = True
            if link.connected:
                link.send(Inspect(job_id=job_id, key=key))
        if begun:
            raise LinkError(f"the check has not ended within {timeout_s:g} s; give it more by --seconds")
        raise _silence(address, timeout_s, link)


def _silence(address: Address, timeout_s: float, link: AgentSocket) -> LinkError:
    return LinkError(
        f"the manager at {address} has not answered within {timeout_s:g} s"
        f"{': ' + link.trouble if link.trouble else ''}; expected a running job there: check TASKD_MANAGER, "
        "TASKD_JOB_ID and the secret"
    )
