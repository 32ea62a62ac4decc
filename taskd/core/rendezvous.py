"""Meeting point of the processes of a new world."""

from typing import Final, NamedTuple


class Rendezvous(NamedTuple):
    """A store at an address that every node reaches, and the prefix of all keys of this job in it."""

    host: str
    port: int
    key: str = ""


NOWHERE: Final = Rendezvous("", 0)
