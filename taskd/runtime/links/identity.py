"""Keys of manager and agents, derived from the one secret of the job.

Rules:

1. secret -> scrypt (salt with the job's name, 16 MiB, some 50 ms) -> master key -> keyed BLAKE2b with the role's name
   -> Curve25519 secret key -> public key. scrypt makes guessing a weak secret expensive. The roles' keys reveal nothing
   about each other.
2. Each side holds the secret, and so both key pairs. The manager accepts only the agents' key, and an agent only the
   manager's. Without the secret, nobody can talk to either or impersonate it.
3. Two jobs with one secret have no key in common, and no table of guesses. So a wrong name looks like a wrong secret,
   and each side names its own job then (`links.py`, `monitor.py`). Without a secret there are no keys, and a wrong name
   is answered with a `Refusal`.
4. The derivation is the same in every version of taskd. So peers of two versions get as far as their first frame, which
   names its version (`wire/codec.py`). With other keys, each would blame the other's secret.
5. Ranks get no secret, only a key derived from it. It yields the key pairs of two ranks that connect to each other: one
   pair for each end, each generation and each function. So no end takes another rank for its neighbour, or one of an
   older generation. This keeps honest ranks apart: a holder of that key can make the pair of any end.
6. All agents of a job hold the same secret. To keep one from speaking for another, each has a proof that it shows to
   the manager alone. The others identify it by the proof's hash.
"""

import hashlib
import secrets
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

_PEERS: Final = b"taskd ranks"
_SALT: Final = b"taskd wire 1, job "
_SCRYPT_N: Final = 1 << 14
_SCRYPT_R: Final = 8
_TOKEN_DIGITS: Final = 32


class Role(Enum):
    """Holder of a key pair. The value goes into its derivation."""

    MANAGER = b"taskd manager"
    AGENT = b"taskd agent"


class KeyPair(NamedTuple):
    """A Curve25519 key pair in the Z85 text that ZeroMQ takes. Never log one."""

    public: bytes
    secret: bytes


def new_proof() -> str:
    """Make the proof that one agent shows its manager with each report. Never log one."""
    return secrets.token_hex(16)


def agent_of(proof: str) -> str:
    """Return the name by which all identify the agent with this proof."""
    return hashlib.blake2b(proof.encode(), digest_size=8).hexdigest()


def keys_from_secret(secret: bytes, role: Role, job_id: str) -> KeyPair:
    """Return the key pair of a role in a job. The same secret, role and name always give the same pair."""
    return _pair(hashlib.blake2b(role.value, key=_master_key(secret, job_id), digest_size=32).digest())


def peers_key(secret: bytes, job_id: str) -> str:
    """Return the key of all ranks of a job, hexadecimal. It reveals nothing about the secret. Never log it."""
    return hashlib.blake2b(_PEERS, key=_master_key(secret, job_id), digest_size=32).hexdigest()


def keys_of_end(key: str, end: str) -> KeyPair:
    """Return the key pair of one end of a connection between ranks. `end`: its full name; `key`: from `peers_key`."""
    return _pair(_derived(key, f"pair {end}"))


def token(key: str, purpose: str) -> str:
    """Return a name that nobody can guess without the ranks' key."""
    return _derived(key, f"name {purpose}").hex()[:_TOKEN_DIGITS]


def _derived(key: str, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=bytes.fromhex(key), digest_size=32).digest()


def _pair(secret: bytes) -> KeyPair:
    secret_key = z85.encode(secret)
    return KeyPair(public=zmq.curve_public(secret_key), secret=secret_key)


@lru_cache(maxsize=4)
def _master_key(secret: bytes, job_id: str) -> bytes:
    salt = _SALT + job_id.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(secret, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1, dklen=32)
