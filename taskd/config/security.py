"""What manager and agents agree on before they talk: a secret, or the user's word that none is wanted.

Rules:

1. Beyond loopback there is no traffic without a secret, unless `TASKD_INSECURE=on` says so.
2. Who has a secret uses it, on loopback too.
3. A secret serves one job at a time: the keys that are made of it hold the job's name (`runtime/links/identity.py`).
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
    """The job's secret, if any, and whether going without one beyond loopback is allowed. `job_id` is its name."""

    secret: bytes | None = field(default=None, repr=False)
    insecure: bool = False
    job_id: str = "default"

    @classmethod
    def from_source(cls, source: Source) -> "Security":
        """Read secret, switch and name. Raises `ConfigError`."""
        return cls(read_secret(source), source.switch(settings.INSECURE), job_id(source))

    def check(self, address: Address, action: str) -> None:
        """Raise `SecretError` if `action` ("listen on", "connect to") at this address needs a secret and has none."""
        if self.secret is None and not self.insecure and not address.is_loopback:
            raise SecretError(
                f"asked to {action} {address} without a secret, expected one beyond loopback; set TASKD_SECRET or "
                "TASKD_SECRET_FILE to the same value on every node (make one with: openssl rand -hex 32), or accept "
                "that anybody who reaches the port can stop the job with TASKD_INSECURE=on"
            )
