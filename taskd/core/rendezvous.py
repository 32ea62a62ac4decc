"""Where the processes of a new world meet."""

from typing import Final, NamedTuple


class Rendezvous(NamedTuple):
    """A store, by the address at which every node reaches it, and what all keys of this job begin with there."""

    host: str
    port: int
    key: str = ""


NOWHERE: Final = Rendezvous("", 0)
