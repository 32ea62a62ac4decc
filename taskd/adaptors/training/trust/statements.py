"""Checks of a script's statements on its replicas in `TrainState`."""

from typing import Final

from taskd.errors import ConfigError

REPLICAS: Final = "replicas"
USUAL_STEPS: Final = 100
LONGEST: Final = 200
"""Most characters of a name: digests are added to it."""


def verify_every(verify: object, every: object) -> int:
    """Return the number of steps from one digest of the state to the next; 0 for none.

    Raises:
        ConfigError: `verify` is neither None nor "replicas"; `every` is no number of steps, or given without `verify`.
    """
    if verify is None:
        if every is not None:
            raise ConfigError(
                f'every is {every!r} without verify, expected both or neither: TrainState(verify="{REPLICAS}", every=…)'
            )
        return 0
    if verify != REPLICAS:
        raise ConfigError(f"verify is {verify!r}, expected {REPLICAS!r} (replicas are compared) or None")
    if every is None:
        return USUAL_STEPS
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"every is {every!r}, expected a number of steps from 1 on")
    return every


def stated_set(name: object) -> str:
    """Return the name of a replica set; "" for none.

    Raises:
        ConfigError: the name is no text, is empty or too long, or has characters that no log can show.
    """
    if name is None:
        return ""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST or not name.isprintable():
        raise ConfigError(
            f"replica_set is {name!r}, expected a name of 1 to {LONGEST} printable characters, the same on the ranks "
            'that hold the same part of the state: replica_set="stage-0"'
        )
    return name
