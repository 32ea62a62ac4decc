"""Security of the traffic between manager and agents: a shared secret, or the user's consent to have none.

Rules:

1. Beyond loopback there is no traffic without a secret, unless `TASKD_INSECURE` is `on`.
2. A process with a secret uses it, on loopback too.
3. A secret serves one job at a time, because the keys derived from it depend on the job's name
   (`runtime/links/identity.py`).
"""

from dataclasses import dataclass, field

from taskd.config import settings
from taskd.config.address import Address
from taskd.config.job import job_id
from taskd.config.reading import Source
from taskd.config.secret import read_secret
from taskd.errors import SecretError


@dataclass(frozen=True)
class Security:
    """The job's secret, if any, and whether traffic beyond loopback is allowed without one. `job_id` is its name."""

    secret: bytes | None = field(default=None, repr=False)
    insecure: bool = False
    job_id: str = "default"

    @classmethod
    def from_source(cls, source: Source) -> "Security":
        """Read the secret, the switch and the job's name. Raises `ConfigError`."""
        return cls(read_secret(source), source.switch(settings.INSECURE), job_id(source))

    def check(self, address: Address, action: str) -> None:
        """Raise `SecretError` if `action` ("listen on", "connect to") at this address needs a secret and has none."""
        if self.secret is None and not self.insecure and not address.is_loopback:
            raise SecretError(
                f"asked to {action} {address} without a secret, expected one beyond loopback; set TASKD_SECRET or "
                "TASKD_SECRET_FILE to the same value on every node (make one with: openssl rand -hex 32), or accept "
                "that anybody who reaches the port can stop the job with TASKD_INSECURE=on"
            )
