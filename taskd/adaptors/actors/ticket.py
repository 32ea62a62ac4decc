"""The data that a process needs to take a rank of a job: plain data, to be sent to it by its starter."""

import hmac
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Final

from taskd.adaptors.actors.door import DOORS, Entrance
from taskd.config.address import Address
from taskd.core.rendezvous import Rendezvous
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank

_NAME_CHARS: Final = 24


@dataclass(frozen=True)
class Ticket:
    """Addresses of a job's manager and store, and the secret by which its processes recognise each other.

    It can be pickled. A holder of it can take part in the job: give it to the job's own processes alone.
    """

    host: str
    port: int
    secret: str = field(repr=False)
    job_id: str
    world_size: int
    store_host: str
    store_port: int
    store_key: str = field(repr=False)
    max_restarts: int = 0
    heartbeat_s: float = 0.25

    @property
    def manager(self) -> Address:
        """Address of the manager."""
        return Address(self.host, self.port)

    @property
    def store(self) -> Rendezvous:
        """Store over which the ranks of a new world meet."""
        return Rendezvous(self.store_host, self.store_port, self.store_key)

    def check(self, rank: int) -> JobRank:
        """Return this rank, which the job must have. Raise `ConfigError` if it has not."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"found rank {rank}, expected one from 0 to {self.world_size - 1}: the manager was started for "
                f"{self.world_size} ranks; give each process its own rank of them"
            )
        return JobRank(rank)

    def entrance(self, rank: int) -> Entrance:
        """Return the names by which a process finds this rank's agent on its host, and the key of both."""
        names = [self._derived(f"name {number}", rank).hex()[:_NAME_CHARS] for number in range(DOORS)]
        return Entrance(tuple(names), self._derived("key", rank))

    def _derived(self, purpose: str, rank: int) -> bytes:
        """Return bytes that nobody can guess without the ticket, and that do not follow from one another."""
        text = f"taskd actors, {purpose}, rank {rank}, job {self.job_id}"
        return hmac.digest(self.secret.encode(), text.encode(), "sha256")

    def to_json(self) -> str:
        """Return it as text, for a process that is started."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Ticket":
        """Return the ticket of a text made by `to_json`. Raise `ConfigError` if the text cannot be read."""
        try:
            given = json.loads(text)
            return cls(**{one.name: given[one.name] for one in fields(cls)})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"found a ticket that cannot be read ({error!r}), expected one made by taskd.manager(); "
                "install the same taskd on every node"
            ) from error
