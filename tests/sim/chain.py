"""The training state of simulated processes: a chain of hashes, which begins elsewhere for each replica set.

And what a step may be left by.
"""


def chain(step: int, replicas: str = "") -> int:
    """The one right state of a step in a replica set."""
    state = 1 + sum(map(ord, replicas))
    for number in range(1, step + 1):
        state = update(state, number)
    return state


def update(state: int, step: int) -> int:
    """One optimizer step."""
    return (state * 1_000_003 + step) % 2_147_483_647


class InterruptedStepError(Exception):
    """The process was told to pause; it leaves at its commit."""


class StrayError(Exception):
    """The script's own error."""
